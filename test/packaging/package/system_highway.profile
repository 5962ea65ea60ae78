# SPDX-License-Identifier: Apache-2.0
# A profile for machines with an installed Highway: `conan create . -pr test/packaging/package/system_highway.profile`
include(default)

[platform_requires]
highway/{{ os.popen("pkg-config --modversion libhwy").read().strip() }}
