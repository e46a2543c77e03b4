"""The row about removals runs at a tiny size, and removes what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_removals_are_measured_beside_rm(tmp_path: Path) -> None:
    argv = [
        sys.executable, str(ROOT / "tests" / "bench" / "run.py"), "remove",
        "--rounds", "1", "--scale", "1000", "--dir", str(tmp_path),
    ]  # fmt: skip
    environ = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "cli")))}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    rows = done.stdout.splitlines()
    assert any("remove 100 shards in 2 checkpoints" in row and "<= 5 x" in row for row in rows)
    assert any("remove 100 shards in one checkpoint" in row for row in rows)
    assert list(tmp_path.iterdir()) == []
