# SPDX-License-Identifier: Apache-2.0
"""Tells PyInstaller which shared library and which page rmsnorm reads."""

from PyInstaller.utils.hooks import collect_data_files

from rmsnorm._library import path_of

_path = path_of("rmsnorm")
binaries = [(str(_path), _path.parent.name)]
datas = collect_data_files("rmsnorm", includes=["migration.md"])
