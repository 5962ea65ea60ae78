# SPDX-License-Identifier: Apache-2.0
"""What PyInstaller asks for the folder of the package's hooks: the entry point pyinstaller40."""

from pathlib import Path

__all__ = ["get_hook_dirs"]


def get_hook_dirs() -> list[str]:
    """Returns the folders with hooks."""
    return [str(Path(__file__).parent)]
