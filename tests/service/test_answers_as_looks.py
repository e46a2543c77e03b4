"""For trees on one machine the catalog's answer after a scan is the look's answer."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ckptgov.governor import Governor, open_governor
from ckptgov.model.answers import LatestAnswer
from ckptgov.model.checkpoint import VerifyLevel
from ckptgov.model.facts import Query
from ckptgov.model.journal import RestoreOutcome
from ckptgov.ops import standing
from ckptgov.testing.builders import write_dcp
from ckptgov.testing.builders.damage import flip_bit, truncate
from ckptgov.wire import documents

_STEPS = st.integers(min_value=1, max_value=6)
_DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), _STEPS),
        st.tuples(st.just("torn"), _STEPS),
        st.tuples(st.just("flip"), _STEPS),
        st.tuples(st.just("delete"), _STEPS),
        st.tuples(st.just("mark"), _STEPS),
        st.tuples(st.just("unmark"), _STEPS),
        st.tuples(st.just("rollback"), _STEPS),
        st.tuples(st.just("load-failed"), _STEPS),
        st.tuples(st.just("scan"), _STEPS),
        st.tuples(st.just("verify"), _STEPS),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25)
@given(deeds=_DEEDS, world_size=st.sampled_from([None, 1, 2]))
def test_the_catalogs_answer_is_the_looks_answer(
    deeds: list[tuple[str, int]], world_size: int | None
) -> None:
    root = Path(tempfile.mkdtemp(prefix="ckptgov-looks-"))
    try:
        run = root / "tier/run"
        run.mkdir(parents=True)
        write_dcp(run / "step_1")
        home = {"CKPTGOV_HOME": str(root / "home")}
        with open_governor(environ=home) as governor:
            governor.scan([str(run)])
        for number, (deed, step) in enumerate(deeds):
            with open_governor(environ=home) as governor:
                _do(governor, run, deed, step, number)
        with open_governor(environ=home) as governor:
            governor.scan([str(run)])
        query = Query(world_size=world_size)
        with open_governor(environ=home) as governor:
            looked = governor.latest("run", query)
        with open_governor(environ=home) as governor:
            told = standing.latest(governor.context, "run", query).answer
        assert _told(told) == _told(looked), deeds
    finally:
        shutil.rmtree(root)


def _told(answer: LatestAnswer) -> object:
    """What a launcher is told; reasons may be worded otherwise."""
    if answer.error is not None:
        return answer.error.kind
    document = documents.latest(answer)
    return {name: told for name, told in document.items() if name not in ("passed_over", "notes")}


def _do(governor: Governor, run: Path, deed: str, step: int, number: int) -> None:
    """One thing that happens to a run; what is refused did not happen."""
    directory = run / f"step_{step}"
    shards = sorted(directory.glob("*.distcp"))
    match deed:
        case "save":
            shutil.rmtree(directory, ignore_errors=True)
            write_dcp(directory, seed=f"{number}", at_ns=None)
        case "torn" if shards:
            truncate(shards[0], by_bytes=1)
        case "flip" if shards:
            flip_bit(shards[0], 3, 1)
        case "delete":
            shutil.rmtree(directory, ignore_errors=True)
        case "mark" | "unmark":
            governor.mark_bad(
                "run",
                step=None,
                from_step=step,
                until_step=step,
                reason="why",
                undo=deed == "unmark",
            )
        case "rollback" if directory.exists() and (directory / ".metadata").exists():
            _unless_refused(lambda: governor.rollback("run", to_step=step))
        case "load-failed":
            restart = f"r{number}"
            told = governor.latest("run", Query(), restart_id=restart)
            if told.error is None:
                governor.report("run", restart_id=restart, outcome=RestoreOutcome.LOAD_FAILED)
        case "scan":
            governor.scan([str(run)])
        case "verify":
            governor.verify("run", level=VerifyLevel.DIGEST)


def _unless_refused(act) -> None:
    from ckptgov.errors import NoneRestorable

    try:
        act()
    except NoneRestorable:
        return
