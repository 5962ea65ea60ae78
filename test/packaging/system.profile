# SPDX-License-Identifier: Apache-2.0
# A profile that takes Highway, Meson and pkg-config of the system in place of Conan's packages.
{% set highway = os.popen("pkg-config --modversion libhwy").read().strip() %}
include(default)

[platform_requires]
highway/{{ highway }}

[replace_requires]
highway/*: highway/{{ highway }}

[platform_tool_requires]
meson/{{ os.popen("meson --version").read().strip() }}

[conf]
tools.gnu:pkg_config=pkg-config
