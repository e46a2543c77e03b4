"""The training command: what is written into it for a checkpoint, and for a fresh start.

``{path}``, ``{parent}``, ``{step}`` and ``{tag}`` are replaced wherever they stand in a word;
``{{path}}`` leaves ``{path}``; every other brace stays, so that JSON needs no escaping. What is in
``--resume-args`` is split into words like a shell does, then filled, and goes where the command
says ``{resume_args}`` (else to its end); on a fresh start it goes away.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ckptgov.errors import UsageError
from ckptgov.model.facts import ResumeArgs

RESUME_ARGS = "{resume_args}"
_FIELDS = "path|parent|step|tag"
_FIELD = re.compile(rf"\{{\{{({_FIELDS}|resume_args)\}}\}}|\{{({_FIELDS}|resume_args)\}}")
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")


class Template(Struct, frozen=True, kw_only=True):
    """A command before anything is known. ``resume``: words that only a resumed start has."""

    words: tuple[str, ...]
    resume: tuple[str, ...] | None = None


def template(words: Sequence[str], resume_args: str | None) -> Template:
    """The command as it was given.

    Raises:
        UsageError: there is none, or what it resumes with does not fit together.
    """
    if not words or not words[0]:
        raise UsageError(
            "there is no command to start", hint="ckptgov exec RUN -- python train.py {path}"
        )
    wants = any("resume_args" in _fields(word) for word in words)
    if wants and resume_args is None:
        raise UsageError("the command has {resume_args}, and --resume-args is not given")
    if resume_args is None:
        return Template(words=tuple(words))
    try:
        resume = tuple(shlex.split(resume_args))
    except ValueError as error:
        raise UsageError(f"--resume-args {resume_args!r}: {error}") from error
    if any("resume_args" in _fields(word) for word in resume):
        raise UsageError("--resume-args cannot hold {resume_args}")
    return Template(words=tuple(words) if wants else (*words, RESUME_ARGS), resume=resume)


def resumed(command: Template, args: ResumeArgs) -> tuple[str, ...]:
    """The words that start from a checkpoint.

    Raises:
        UsageError: the command wants a step, and this checkpoint carries none.
    """
    values = {"path": args.path, "parent": args.parent, "tag": args.tag}
    if args.step is not None:
        values["step"] = str(args.step)
    resume = [_filled(word, values) for word in command.resume or ()]
    return _joined(command, resume, values)


def fresh(command: Template) -> tuple[str, ...]:
    """The words that start from nothing.

    Raises:
        UsageError: the command cannot be started without a checkpoint.
    """
    needs = sorted({name for word in command.words for name in _fields(word)} - {"resume_args"})
    if needs:
        named = ", ".join(f"{{{name}}}" for name in needs)
        raise UsageError(
            f"there is no checkpoint to start from, and the command needs {named}",
            hint="put what only a resumed start has into --resume-args '... {path} ...'",
        )
    return _joined(command, [], {})


def _joined(command: Template, resume: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """A word that is nothing else becomes the words; inside a shell's text they are quoted."""
    inside = {**values, "resume_args": shlex.join(resume)}
    words: list[str] = []
    for word in command.words:
        words += resume if word == RESUME_ARGS else [_filled(word, inside)]
    return tuple(words)


def _fields(word: str) -> set[str]:
    return {match[2] for match in _FIELD.finditer(word) if match[2] is not None}


def _filled(word: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] is not None:
            return f"{{{match[1]}}}"
        if match[2] not in values:
            raise UsageError(f"{{{match[2]}}}: this checkpoint has none")
        return values[match[2]]

    return _FIELD.sub(value, word)


def restarts_by_itself(words: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Why a torchrun would restart its workers without asking again; None where it would not.

    Its own restarts pass us by: the workers would load what this one start was given. Nothing is
    wrong where the workers ask for themselves.
    """
    if not _is_torchrun(words) or _asks_per_worker(words):
        return None
    restarts = _option(words, "max-restarts") or environ.get("PET_MAX_RESTARTS", "0")
    if restarts.strip() not in ("", "0"):
        return f"it restarts its workers up to {restarts} times"
    nodes = _option(words, "nnodes") or environ.get("PET_NNODES", "")
    least, colon, most = nodes.partition(":")
    if colon and least != most:
        return f"it restarts its workers whenever one of {nodes} nodes comes or goes"
    return None


def _is_torchrun(words: Sequence[str]) -> bool:
    return any(os.path.basename(word) == "torchrun" or word in _TORCHRUN for word in words[:6])


def _asks_per_worker(words: Sequence[str]) -> bool:
    names = [os.path.basename(word) for word in words]
    is_ours = ("ckptgov", "ckptgov_cli.main")
    return any(name in is_ours and after == "exec" for name, after in itertools.pairwise(names))


def _option(words: Sequence[str], name: str) -> str:
    """The last value of a long option, spelled with dashes or underscores as torchrun allows."""
    found = ""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        key, equals, value = word.partition("=")
        if key.startswith("--") and key[2:].replace("_", "-") == name:
            found = value if equals else after
    return found
