# SPDX-License-Identifier: Apache-2.0
"""Tells PyInstaller which shared library rmsnorm loads."""

from rmsnorm._library import path_of

_path = path_of("rmsnorm")
binaries = [(str(_path), _path.parent.name)]
