# SPDX-License-Identifier: Apache-2.0
"""Tells PyInstaller which shared libraries rmsnorm loads."""

from rmsnorm._library import path_of

_paths = [path_of(name) for name in ("rmsnorm", "rmsnorm_identify")]
binaries = [(str(path), path.parent.name) for path in _paths]
