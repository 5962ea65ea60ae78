# SPDX-License-Identifier: Apache-2.0
# Functions for builds that run elsewhere.
# shellcheck shell=bash disable=SC2154  # root and arch are the caller's

# Installs zig, and a version of Meson that knows its linker. Releases of zig differ much: hence the limit.
require_zig() {
  require python3-venv
  if [[ ! -x $root/build-zig/bin/meson ]]; then
    say "installing zig into $root/build-zig"
    python3 -m venv "$root/build-zig"
    "$root/build-zig/bin/pip" install --quiet 'ziglang>=0.17,<0.18' 'meson>=1.12'
  fi
  export PATH=$root/build-zig/bin:$PATH ZIG_GLOBAL_CACHE_DIR=$root/build-zig/cache
}

# Prints "NAME = [...]".
meson_list() {  # meson_list NAME ELEMENT...
  echo "$1 = [$(printf "'%s', " "${@:2}")]"
}

# Sees that a library which nothing here runs has the kernels of its CPU.
inspect_library() {  # inspect_library FILE
  local code register registers=('zmm[0-9]' 'ymm[0-9]')
  [[ $arch != arm64 ]] || registers=('fmla.*4s')
  code=$(llvm-objdump -d --no-show-raw-insn "$1")
  for register in "${registers[@]}"; do
    grep -q "$register" <<<"$code" || fail "no instruction in $1 has $register"
  done
}
