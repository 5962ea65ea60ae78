# SPDX-License-Identifier: Apache-2.0
"""Tells PyInstaller which shared library rmsnorm.jax loads."""

from rmsnorm._library import path_of

_path = path_of("rmsnorm_jax")
binaries = [(str(_path), _path.parent.name)] if _path.exists() else []
