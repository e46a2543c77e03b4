"""The units are what systemd takes: an unknown key would only be a warning in some journal."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from deploy_files import DEPLOY

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXECUTABLE = "/opt/ckptgov/bin/ckptgov"


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_knows_every_key(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name.replace("@.", "@node0.")
    text = unit.read_text()
    assert EXECUTABLE in text
    copy.write_text(text.replace(EXECUTABLE, "/bin/true"))  # it wants one that is there
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True
    )
    told = [line for line in done.stderr.splitlines() if copy.name in line]
    assert (done.returncode, told) == (0, []), done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_environment_files_have_an_example(unit: Path) -> None:
    (named,) = re.findall(r"^EnvironmentFile=/etc/ckptgov/(\S+)$", unit.read_text(), re.MULTILINE)
    assert (DEPLOY / "systemd" / f"{named}.example").exists()
