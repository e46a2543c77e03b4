"""What is written into a training command, and what goes away on a fresh start."""

from __future__ import annotations

import pytest

from ckptgov.errors import UsageError
from ckptgov.integrations.command import fresh, restarts_by_itself, resumed, template
from ckptgov.model.facts import ResumeArgs

ARGS = ResumeArgs(path="/t/run/step_2", parent="/t/run", step=2, tag="step_2")


def started(words: list[str], resume_args: str | None = None, args: ResumeArgs = ARGS) -> list[str]:
    return list(resumed(template(words, resume_args), args))


def test_the_loader_s_words_are_replaced_wherever_they_stand() -> None:
    words = ["t", "{path}", "--dir={parent}", "{step}:{tag}"]
    assert started(words) == ["t", "/t/run/step_2", "--dir=/t/run", "2:step_2"]


@pytest.mark.parametrize("word", ['{"a": {"b": {}}}', "{run}", "{}", "{0}", "${HOME}", "a{{b}}c"])
def test_other_braces_stay(word: str) -> None:
    assert started(["t", word]) == ["t", word]


def test_doubled_braces_leave_a_literal_field() -> None:
    assert started(["t", "{{step}}", "ckpt-{{tag}}-{step}"]) == ["t", "{step}", "ckpt-{tag}-2"]


def test_what_was_put_in_is_not_read_again() -> None:
    odd = ResumeArgs(path="/t/{step}", parent="/t", step=2, tag="{path}")
    assert started(["t", "{path}", "{tag}"], args=odd) == ["t", "/t/{step}", "{path}"]


def test_resume_args_go_where_the_command_wants_them() -> None:
    words = ["t", "{resume_args}", "--last"]
    assert started(words, "--resume '{path}' --step {step}") == [
        *("t", "--resume", "/t/run/step_2", "--step", "2", "--last")
    ]


def test_resume_args_go_to_the_end_else() -> None:
    assert started(["t", "a"], "--from {path}") == ["t", "a", "--from", "/t/run/step_2"]


def test_a_path_with_a_space_stays_one_word() -> None:
    odd = ResumeArgs(path="/t/a b", parent="/t", step=1, tag="a b")
    assert started(["t"], "--resume {path}", odd) == ["t", "--resume", "/t/a b"]


def test_resume_args_inside_a_shell_s_text_are_quoted() -> None:
    odd = ResumeArgs(path="/t/a b; rm x", parent="/t", step=1, tag="a")
    words = ["sh", "-c", "train {resume_args} --last"]
    assert started(words, "--resume {path}", odd)[2] == "train --resume '/t/a b; rm x' --last"
    assert fresh(template(words, "--resume {path}"))[2] == "train  --last"


def test_a_fresh_start_has_no_resume_args() -> None:
    assert fresh(template(["t", "{resume_args}", "b"], "--resume {path}")) == ("t", "b")
    assert fresh(template(["t", "{{path}}"], "--resume {path}")) == ("t", "{path}")


@pytest.mark.parametrize("word", ["{path}", "--dir={parent}", "{step}", "x{tag}"])
def test_a_command_that_needs_a_checkpoint_does_not_start_fresh(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        fresh(template(["t", word], None))
    assert "--resume-args" in (caught.value.hint or "")


def test_a_step_that_there_is_not_is_refused() -> None:
    args = ResumeArgs(path="/t/release", parent="/t", step=None, tag="release")
    assert started(["t", "{path}"], args=args) == ["t", "/t/release"]
    with pytest.raises(UsageError, match="step"):
        started(["t", "{step}"], args=args)


@pytest.mark.parametrize(
    ("words", "resume_args"),
    [
        ([], None),
        ([""], None),
        (["t", "{resume_args}"], None),
        (["t"], "--a 'open"),
        (["t"], "{resume_args}"),
    ],
)
def test_what_does_not_fit_together_is_refused(words: list[str], resume_args: str | None) -> None:
    with pytest.raises(UsageError):
        template(words, resume_args)


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "--max-restarts=3", "t.py"],
        ["torchrun", "--max_restarts", "3", "t.py"],
        ["/opt/venv/bin/torchrun", "--nnodes=2:4", "t.py"],
        ["python", "-m", "torch.distributed.run", "--max-restarts=1", "t.py"],
    ],
)
def test_a_torchrun_that_restarts_its_workers_is_told(words: list[str]) -> None:
    assert restarts_by_itself(words, {}) is not None


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "t.py"],
        ["torchrun", "--max-restarts=0", "--nnodes=2:2", "t.py"],
        ["python", "t.py", "--max-restarts=3"],
        ["torchrun", "--max-restarts=3", "--no-python", "ckptgov", "exec", "r", "--", "python"],
    ],
)
def test_one_that_does_not_or_whose_workers_ask_is_not(words: list[str]) -> None:
    assert restarts_by_itself(words, {}) is None


def test_torchrun_s_own_variables_count() -> None:
    assert restarts_by_itself(["torchrun", "t.py"], {"PET_MAX_RESTARTS": "2"}) is not None
