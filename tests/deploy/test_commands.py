"""Every command line in the deployment files is one that the real command line takes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from deploy_files import DEPLOY, documents, pod_specs

from ckptgov.config.load import load_settings
from ckptgov.integrations.command import fresh, restarts_by_itself, resumed, template
from ckptgov.integrations.restart_id import compose
from ckptgov.model.facts import ResumeArgs
from ckptgov_cli.app import app

SCRIPTS = sorted([*DEPLOY.glob("launchers/*.sh"), *DEPLOY.glob("launchers/*.sbatch")])
ARGS = ResumeArgs(path="/t/run/step_2", parent="/t/run", step=2, tag="step_2")


def joined(text: str) -> str:
    """One line for each command: continued ones are put together."""
    return re.sub(r"\\\n\s*", " ", text)


def of_text(path: Path) -> Iterator[list[str]]:
    """The words behind ``ckptgov`` in scripts, units and (indented or quoted) in the runbook."""
    for line in joined(path.read_text()).splitlines():
        told = re.findall(r"`(ckptgov [^`]+)`", line) if path.suffix == ".md" else []
        if re.match(r"\s{4,}ckptgov ", line) or (path.suffix != ".md" and not line.startswith("#")):
            told.append(line)
        for one in told:
            yield from of_words(_split(one))


def _split(line: str) -> list[str]:
    line = re.split(r"\s(?:\|\|?|>|;|&&)\s", line.strip())[0]
    return shlex.split(line.removeprefix("ExecStart="), comments=True)


def of_words(words: list[str]) -> Iterator[list[str]]:
    for number, word in enumerate(words):
        if word.rpartition("/")[2] == "ckptgov" and number + 1 < len(words):
            yield words[number + 1 :]
            return


def of_containers(path: Path) -> Iterator[list[str]]:
    for document in documents(path):
        for spec in pod_specs(document):
            for container in spec["containers"]:
                words = [*container.get("command", []), *container.get("args", [])]
                is_ours = container["image"].startswith("ckptgov")
                yield from of_words(["ckptgov", *words] if is_ours else words)


def all_commands() -> list[tuple[str, list[str]]]:
    texts = [*SCRIPTS, *DEPLOY.glob("systemd/*.service"), DEPLOY / "RUNBOOK.md"]
    yamls = [*DEPLOY.glob("launchers/*.yaml"), *DEPLOY.glob("kubernetes/base/*.yaml")]
    found = [(path.name, words) for path in texts for words in of_text(path)]
    found += [(path.name, words) for path in yamls for words in of_containers(path)]
    (compose_file,) = documents(DEPLOY / "docker/compose.yaml")
    found.append(("compose.yaml", compose_file["x-service"]["command"]))
    told = re.search(r"^CMD (\[.*\])$", (DEPLOY / "docker/Dockerfile").read_text(), re.MULTILINE)
    assert told is not None
    found.append(("Dockerfile", json.loads(told[1])))
    return found


COMMANDS = all_commands()
EXECS = [(name, words) for name, words in COMMANDS if words[0] == "exec" and "--" in words]


def test_the_files_were_read() -> None:
    named = {name for name, _ in COMMANDS}
    assert named >= {path.name for path in SCRIPTS}
    assert named >= {"ckptgov.service", "ckptgov-agent@.service", "service.yaml", "agent.yaml"}
    assert named >= {"jobset.yaml", "kueue.yaml", "volcano.yaml", "RUNBOOK.md"}


@pytest.mark.parametrize(("name", "words"), COMMANDS, ids=lambda value: str(value)[:60])
def test_the_command_line_takes_it(name: str, words: list[str]) -> None:
    command = typer.main.get_command(app)
    context = command.make_context("ckptgov", [], resilient_parsing=True)
    path = list(words)
    while hasattr(command, "commands"):
        assert path, f"{name}: {words} is half a command"
        word = path.pop(0)
        assert word in command.commands, f"{name}: there is no {word!r} in {words}"
        command = command.commands[word]
        if not path and hasattr(command, "commands"):
            return  # named as a group: "ckptgov run …"
    is_mentioned = len(words) - len(path) == len(words) and name == "RUNBOOK.md"
    if is_mentioned and any(one.required for one in command.params):
        return  # "ckptgov exec says …"
    command.make_context(" ".join(words[:2]), path, parent=context)


@pytest.mark.parametrize(("name", "words"), EXECS, ids=lambda value: str(value)[:60])
def test_exec_starts_resumed_and_fresh(name: str, words: list[str]) -> None:
    at = words.index("--")
    resume_args = words[words.index("--resume-args") + 1]
    command = template(words[at + 1 :], resume_args)
    assert ARGS.path in resumed(command, ARGS)
    assert not any("{" in word for word in fresh(command))


NAMES_OF_CONTAINERS = {
    "jobset.yaml": {},
    "volcano.yaml": {"VOLCANO_POD_GROUP": "train-754cca77-ac95-4b00-8f8b-f2d39f4e4804"},
    "kueue.yaml": {
        "TORCHELASTIC_RUN_ID": "uid",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "MASTER_ADDR": "train-0.train",
        "MASTER_PORT": "40000",
    },
}


@pytest.mark.parametrize("name", NAMES_OF_CONTAINERS)
def test_what_the_pods_are_given_names_their_restart(name: str) -> None:
    for document in documents(DEPLOY / "launchers" / name):
        for spec in pod_specs(document):
            (container,) = spec["containers"]
            told = {one["name"]: one.get("value", "1") for one in container["env"]}
            assert compose(told | NAMES_OF_CONTAINERS[name]).restart_id


def test_workers_that_torchrun_restarts_ask_for_themselves() -> None:
    lines = [
        shlex.split(line, comments=True)
        for path in SCRIPTS
        for line in joined(path.read_text()).splitlines()
        if "torchrun " in line and not line.startswith("#")
    ]
    lines += [
        container["command"]
        for document in documents(DEPLOY / "launchers/kueue.yaml")
        for spec in pod_specs(document)
        for container in spec["containers"]
    ]
    assert len(lines) == 3
    for words in lines:
        assert "--no-python" in words
        assert restarts_by_itself(words[words.index("torchrun") :], {}) is None


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_what_a_shell_takes(path: Path) -> None:
    shell = path.read_text().splitlines()[0].rpartition("/")[2]
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def settings_texts() -> list[tuple[str, str]]:
    found = [("compose", (DEPLOY / "docker/ckptgov.yaml").read_text())]
    for path in sorted((DEPLOY / "kubernetes").rglob("*.yaml")):
        for one in documents(path):
            text = (one.get("data") or {}).get("ckptgov.yaml")
            if text is not None:
                found.append((f"{path.name}:{one['metadata']['name']}", text))
    return found


@pytest.mark.parametrize(("name", "text"), settings_texts(), ids=lambda value: str(value)[:40])
def test_settings_files_are_read_by_the_real_reader(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "ckptgov.yaml").write_text(text)
    assert load_settings(str(tmp_path), {}).tiers, name
