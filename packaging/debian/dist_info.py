# SPDX-License-Identifier: Apache-2.0
"""Writes the metadata of the Python package: dist_info.py VERSION FOLDER. No Debian has the
meson-python that pyproject.toml asks for, so Meson installs the modules, and this the rest."""

import sys
import tomllib
from pathlib import Path

version, to = sys.argv[1:]
project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
folder = Path(to, f"{project['name']}-{version}.dist-info")
folder.mkdir()
(folder / "METADATA").write_text(
    "Metadata-Version: 2.1\n"
    f"Name: {project['name']}\n"
    f"Version: {version}\n"
    f"Summary: {project['description']}\n"
    f"License: {project['license']}\n"
    f"Requires-Python: {project['requires-python']}\n"
    + "".join(f"Requires-Dist: {package}\n" for package in project["dependencies"])
)
(folder / "entry_points.txt").write_text(
    "".join(
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in entries.items())
        for group, entries in project["entry-points"].items()
    )
)
(folder / "INSTALLER").write_text("debian\n")
