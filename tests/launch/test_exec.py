"""``ckptgov exec`` end to end: from what it starts, when it does not, and what is recorded."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptgov.testing.builders import truncate, write_dcp

SAY_PATH = "import os; print(os.environ.get('CKPTGOV_PATH'))"


def lines(answer) -> list[str]:
    return answer.stdout.splitlines()


def test_a_command_starts_from_the_newest_whole_checkpoint(ckptgov, run: Path, python) -> None:
    truncate(write_dcp(run / "step_300") / "__0_0.distcp", by_bytes=1)
    code = "import sys; print(*sys.argv[1:])"
    answer = ckptgov.exec(
        run, "--resume-args", "--resume {path} --step {step}", "--", *python(code), "a"
    )
    assert lines(answer) == [f"a --resume {run}/step_200 --step 200"]


def test_the_environment_names_the_start(ckptgov, run: Path, python) -> None:
    code = (
        "import os; print(*(os.environ['CKPTGOV_' + n] for n in ('STEP', 'RESTART_ID', 'EPOCH')))"
    )
    assert lines(ckptgov.exec(run, "--", *python(code))) == ["200 r 0"]


def test_eight_ranks_at_once_get_one_answer(ckptgov, run: Path, python) -> None:
    def rank(number: int) -> str:
        return ckptgov.exec(run, "--", *python(SAY_PATH), RANK=str(number), SLURM_JOB_ID="7").stdout

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(rank, range(8)))
    assert answers == {f"{run}/step_200\n"}
    assert len(list((run / ".ckptgov/journal").glob("restart.*"))) == 1


def test_a_save_meanwhile_does_not_split_the_ranks(ckptgov, run: Path, python) -> None:
    ckptgov.exec(run, "--", *python(SAY_PATH))
    write_dcp(run / "step_300")
    assert lines(ckptgov.exec(run, "--", *python(SAY_PATH))) == [f"{run}/step_200"]
    other = ckptgov.exec(run, "--restart-id", "s", "--", *python(SAY_PATH))
    assert lines(other) == [f"{run}/step_300"]


def test_the_restart_is_named_by_what_the_scheduler_says(ckptgov, run: Path, python) -> None:
    code = "import os; print(os.environ['CKPTGOV_RESTART_ID'])"
    told = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2", "SLURM_STEP_ID": "1"}
    assert lines(ckptgov.exec(run, "--", *python(code), **told)) == ["slurm-7.2.1"]


def test_without_a_name_for_the_restart_nothing_starts(ckptgov, run: Path, python) -> None:
    answer = ckptgov("exec", run, "--", *python("print('started')"))
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "--restart-id" in answer.stderr


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


@pytest.fixture
def created(ckptgov, tmp_path: Path) -> Path:
    """A run that was registered before its first checkpoint."""
    root = tmp_path / "tier/new"
    assert ckptgov("run", "create", "new", "--root", root).returncode == 0
    return root


def fresh(ckptgov, python, target: str | Path, *options: str):
    words = python("import sys; print('started', *sys.argv[1:])")
    return ckptgov.exec(target, "--resume-args", "{path}", *options, "--", *words)


def test_a_run_made_by_run_create_starts_fresh(ckptgov, created: Path, python) -> None:
    answer = fresh(ckptgov, python, "new")
    assert (answer.returncode, lines(answer)) == (0, ["started"])


def test_it_may_start_fresh_again_when_nothing_was_saved(ckptgov, created: Path, python) -> None:
    for restart in ("a", "b"):
        assert lines(fresh(ckptgov, python, "new", "--restart-id", restart)) == ["started"]


def test_after_a_fresh_start_that_saved_nothing_there_never_was_one(
    ckptgov, created: Path, python
) -> None:
    """A crash before the first save: what asks ``latest`` by itself may begin at zero again."""
    assert lines(fresh(ckptgov, python, "new")) == ["started"]
    assert ckptgov("latest", "new").returncode == 4
    assert ckptgov("latest", created).returncode == 4


def test_a_directory_starts_fresh_only_when_it_is_allowed(ckptgov, empty: Path, python) -> None:
    answer = fresh(ckptgov, python, empty)
    assert (answer.returncode, answer.stdout) == (4, "")
    assert lines(fresh(ckptgov, python, empty, "--allow-fresh")) == ["started"]


def test_ranks_that_start_fresh_share_one_decision(ckptgov, empty: Path, python) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: fresh(ckptgov, python, empty, "--allow-fresh"), range(4)))
    assert [lines(one) for one in answers] == 4 * [["started"]]
    (decision,) = (empty / ".ckptgov/journal").glob("restart.*.json")
    assert json.loads(decision.read_text())["fresh"] is True


def test_a_used_id_does_not_start_fresh_over_what_was_saved(ckptgov, empty, python) -> None:
    fresh(ckptgov, python, empty, "--allow-fresh")
    write_dcp(empty / "step_100")
    answer = fresh(ckptgov, python, empty, "--allow-fresh")
    assert (answer.returncode, answer.stdout) == (6, "")
    assert lines(fresh(ckptgov, python, empty, "--restart-id", "s")) == [
        f"started {empty}/step_100"
    ]


def test_torn_checkpoints_never_start_fresh(ckptgov, empty: Path, python) -> None:
    truncate(write_dcp(empty / "step_1") / "__0_0.distcp", by_bytes=1)
    answer = fresh(ckptgov, python, empty, "--allow-fresh")
    assert (answer.returncode, answer.stdout) == (5, "")


def test_checkpoints_that_went_away_never_start_fresh(ckptgov, run: Path, python) -> None:
    assert ckptgov("scan", run).returncode == 0
    for step in (100, 200):
        shutil.rmtree(run / f"step_{step}")
    for target in (run, "run"):
        answer = fresh(ckptgov, python, target, "--allow-fresh")
        assert (answer.returncode, answer.stdout) == (5, "")


def test_records_of_checkpoints_alone_never_start_fresh(ckptgov, run: Path, python) -> None:
    assert ckptgov("scan", run).returncode == 0
    for path in (*run.glob("step_*"), run / ".ckptgov/manifests", run / ".ckptgov/receipts"):
        shutil.rmtree(path)
    answer = fresh(ckptgov, python, run, "--allow-fresh")
    assert (answer.returncode, answer.stdout) == (5, "")


def test_a_missing_directory_never_starts_fresh(ckptgov, tmp_path: Path, python) -> None:
    answer = fresh(ckptgov, python, tmp_path / "unmounted", "--allow-fresh")
    assert (answer.returncode, answer.stdout) == (9, "")


def test_a_created_run_whose_place_went_away_never_starts_fresh(
    ckptgov, created: Path, python
) -> None:
    os.rename(created.parent, created.parent.with_name("moved"))
    created.mkdir(parents=True)  # as an unmounted file system looks: there, and empty
    answer = fresh(ckptgov, python, "new", "--allow-fresh")
    assert (answer.returncode, answer.stdout) == (9, "")


def test_an_unknown_run_never_starts_fresh(ckptgov, python) -> None:
    answer = fresh(ckptgov, python, "nobody", "--allow-fresh")
    assert (answer.returncode, answer.stdout) == (9, "")


def test_several_runs_never_start_fresh(ckptgov, tmp_path: Path, python) -> None:
    for name in ("a", "b"):
        write_dcp(tmp_path / "several" / name / "step_1")
    answer = fresh(ckptgov, python, tmp_path / "several", "--allow-fresh")
    assert (answer.returncode, answer.stdout) == (12, "")


def test_a_command_that_needs_a_path_decides_no_fresh_start(ckptgov, empty, python) -> None:
    answer = ckptgov.exec(empty, "--allow-fresh", "--", *python("print(1)"), "{path}")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert not (empty / ".ckptgov").exists()


def test_the_declared_code_has_the_next_restart_step_back(ckptgov, run, python, journal) -> None:
    option = ("--load-failed-code", "3")
    assert ckptgov.exec(run, *option, "--", *python("raise SystemExit(3)")).returncode == 3
    (record,) = journal(run)
    assert (record["outcome"], record["epoch"]) == ("load-failed", 0)
    assert lines(ckptgov.exec(run, "--restart-id", "s", "--", *python(SAY_PATH))) == [
        f"{run}/step_100"
    ]


def test_a_crash_loop_never_steps_back(ckptgov, run: Path, python, journal) -> None:
    for restart in ("a", "b", "c"):
        option = ("--restart-id", restart, "--load-failed-code", "3")
        ckptgov.exec(run, *option, "--", *python("raise SystemExit(1)"))
    assert [record["outcome"] for record in journal(run)] == 3 * ["failed-later"]
    assert lines(ckptgov.exec(run, "--", *python(SAY_PATH))) == [f"{run}/step_200"]


def test_a_ready_file_says_that_it_started(ckptgov, run: Path, python, journal, tmp_path) -> None:
    ready = tmp_path / "ready"
    ready.touch()  # left over from an earlier start: says nothing of this one
    code = "import os; p = os.environ['CKPTGOV_READY_FILE']; print(os.path.exists(p)); open(p, 'w')"
    option = ("--ready-file", str(ready), "--load-failed-code", "3")
    answer = ckptgov.exec(run, *option, "--", *python(f"{code}; raise SystemExit(3)"))
    assert lines(answer) == ["False"]
    assert [record["outcome"] for record in journal(run)] == ["started", "failed-later"]


def test_an_end_without_error_says_that_it_started(ckptgov, run: Path, python, journal) -> None:
    ckptgov.exec(run, "--", *python(""))
    assert [record["outcome"] for record in journal(run)] == ["started"]


def test_only_the_first_rank_says_that_all_went_well(ckptgov, run, python, journal) -> None:
    told = []
    for rank in "10":
        ckptgov.exec(run, "--", *python(""), RANK=rank, SLURM_JOB_ID="7")
        told.append([record["outcome"] for record in journal(run)])
    assert told == [[], ["started"]]


def test_ranks_that_fail_alike_are_recorded_once(ckptgov, run: Path, python, journal) -> None:
    for rank in "0123":
        ckptgov.exec(run, "--", *python("raise SystemExit(1)"), RANK=rank, SLURM_JOB_ID="7")
    assert [record["outcome"] for record in journal(run)] == ["failed-later"]


def test_of_a_fresh_start_no_outcome_is_recorded(ckptgov, empty: Path, python, journal) -> None:
    answer = fresh(ckptgov, python, empty, "--allow-fresh")
    assert journal(empty) == []
    assert "could not be told" not in answer.stderr


def test_a_report_that_fails_changes_nothing_for_the_command(
    ckptgov, run: Path, python, tmp_path: Path
) -> None:
    code = f"import os; os.rename({str(run)!r}, {str(tmp_path / 'away')!r}); raise SystemExit(7)"
    answer = ckptgov.exec(run, "--", *python(code))
    assert answer.returncode == 7
    assert "could not be told" in answer.stderr


def test_what_is_staged_is_what_the_command_gets(ckptgov, run, python, tmp_path: Path) -> None:
    assert ckptgov("scan", run).returncode == 0
    near = tmp_path / "near"
    answer = ckptgov.exec("run", "--stage", str(near), "--", *python(SAY_PATH))
    (path,) = lines(answer)
    assert path.startswith(str(near))
    assert (Path(path) / ".metadata").exists()


def test_a_dry_run_decides_and_starts_nothing(ckptgov, run: Path) -> None:
    answer = ckptgov("exec", run, "--dry-run", "--json", "--", "touch", f"{run}/x", "{path}")
    assert json.loads(answer.stdout)["would_start"][2] == f"{run}/step_200"
    assert not (run / "x").exists()
    assert not (run / ".ckptgov").exists()


def test_the_command_s_own_json_option_is_not_ours(ckptgov, tmp_path: Path) -> None:
    answer = ckptgov.exec(tmp_path / "none", "--", "train", "--json")
    assert (answer.returncode, answer.stdout) == (9, "")


def test_a_torchrun_that_restarts_by_itself_is_told(ckptgov, run: Path, tmp_path: Path) -> None:
    torchrun = tmp_path / "torchrun"
    torchrun.write_text("#!/bin/sh\nexit 0\n")
    torchrun.chmod(0o755)
    answer = ckptgov.exec(run, "--", str(torchrun), "--max-restarts=3", "t.py")
    assert answer.returncode == 0
    assert "--no-python" in answer.stderr
