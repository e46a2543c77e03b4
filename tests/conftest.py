"""What all rooms' tests share."""

from __future__ import annotations

import gc
import random
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine draws slowly; that says nothing about the code.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

_SAMPLES = Path(__file__).parent / "data" / "samples.tar.gz"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults", "fault campaigns")
    group.addoption(
        "--seed",
        type=int,
        # Drawn once: the processes of a parallel run are given the option by the first one.
        default=random.SystemRandom().randrange(10**6),
        help="repeat the sample of the campaigns that printed this number (default: a new one)",
    )
    group.addoption(
        "--full-sweep", action="store_true", help="every fault, not a sample: for tests/faults"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are made, and all of them stay: nothing of that is worth a search."""
    gc.disable()
    try:
        result = yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Not in the header, which -q leaves out.
    seed = terminalreporter.config.getoption("--seed")
    terminalreporter.write_line(f"faults were drawn with --seed={seed}")


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
