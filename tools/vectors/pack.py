# SPDX-License-Identifier: Apache-2.0
"""Packs files into an archive whose bytes depend on nothing but the files: pack.py ARCHIVE FILE...

The archive holds them in one folder, which has its name."""

import io
import lzma
import os
import sys
import tarfile

TIME = 946684800  # 2000-01-01: any fixed time, and one that no tool finds implausible


def main(archive, *paths):
    folder = os.path.basename(archive)[: -len(".tar.xz")]
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(paths, key=os.path.basename):
            with open(path, "rb") as file:
                data = file.read()
            member = tarfile.TarInfo(f"{folder}/{os.path.basename(path)}")
            member.size, member.mtime, member.mode = len(data), TIME, 0o644
            tar.addfile(member, io.BytesIO(data))
    with open(archive, "wb") as file:
        file.write(lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main(*sys.argv[1:])
