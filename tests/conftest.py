"""What all rooms' tests share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_SAMPLES = Path(__file__).parent / "data" / "samples.tar.gz"


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real checkpoints of ten frameworks, whole and torn; read-only by agreement.

    Modes, symlinks and modification times are theirs to the nanosecond (which is why tar unpacks
    them: Python's tarfile rounds). Copy with ``cp -a`` before changing anything.
    """
    target = tmp_path_factory.mktemp("samples")
    subprocess.run(["tar", "xpzf", str(_SAMPLES), "-C", str(target)], check=True)
    inner = list(target.iterdir())
    return inner[0] if len(inner) == 1 else target
