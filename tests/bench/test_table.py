"""The bench itself is not run here; only that it can be, and that its table tells the budget."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_bench_prints_each_ratio_beside_its_budget_and_exits_0(tmp_path: Path) -> None:
    argv = [
        sys.executable, str(ROOT / "tests" / "bench" / "run.py"), "digest", "seal",
        "--rounds", "2", "--scale", "512", "--dir", str(tmp_path),
    ]  # fmt: skip
    environ = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "cli")))}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    title, *rows = done.stdout.splitlines()
    assert title.split()[-4:] == ["BUDGET", "RATIO", "(LEAST-MOST)", "VERDICT"]
    assert any("digest a warm file" in row and ">= 0.9 x" in row for row in rows)
    assert any("seal 32 shards" in row and "<= 3 x" in row for row in rows)
    assert list(tmp_path.iterdir()) == []
