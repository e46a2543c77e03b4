"""The wheel carries what it must, and the command works from it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed")
    target = tmp_path_factory.mktemp("wheel")
    code = (
        "import sys; from hatchling.build import build_wheel; "
        "sys.stdout = sys.stderr; build_wheel(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(target)], cwd=ROOT, check=True)
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_carries_packages_presets_and_the_console_script(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (points,) = [name for name in names if name.endswith("entry_points.txt")]
        script = archive.read(points).decode()
    assert {"ckptgov/py.typed", "ckptgov/policies/starter.yaml", "ckptgov_cli/main.py"} <= names
    assert "ckptgov = ckptgov_cli.main:main" in script
    assert not [name for name in names if name.startswith(("tests/", "cli/"))]


def test_the_command_works_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "empty").mkdir()
    environ = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "site"),
        "CKPTGOV_HOME": str(tmp_path / "home"),
    }
    code = (
        "import sys, ckptgov; from ckptgov_cli.main import main; "
        "assert ckptgov.__file__.startswith(sys.argv[1]); "
        "sys.exit(main(['latest', sys.argv[2]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "site"), str(tmp_path / "empty")],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done.stderr
