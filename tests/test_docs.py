"""What the documents claim holds: commands, exit codes, rooms, the starter configuration."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ckptgov import errors
from ckptgov.config.load import load_settings
from ckptgov.model.facts import Reason
from ckptgov_cli.app import app, catalog_app, run_app_, tier_app
from ckptgov_cli.exits import EXIT_CODES
from ckptgov_cli.main import main
from ckptgov_cli.planning import plans_app
from ckptgov_cli.policies import policy_app

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


_GROUPS = (
    *(("tier", tier_app), ("run", run_app_), ("catalog", catalog_app)),
    *(("policy", policy_app), ("plans", plans_app)),
)


def commands() -> list[str]:
    named = [command.name for command in app.registered_commands if command.name]
    for prefix, group in _GROUPS:
        named += [f"{prefix} {command.name}" for command in group.registered_commands]
    return sorted(named)


@pytest.mark.parametrize("command", commands())
def test_every_command_explains_itself_and_its_exit_codes(command: str, capsys) -> None:
    assert main([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Usage: ckptgov" in shown or "usage: ckptgov" in shown
    assert "could not look (missing, unmounted, unreadable)" in shown


@pytest.mark.parametrize(
    "command",
    [
        *("latest", "scan", "commit", "verify", "list", "explain", "manifest", "mark-bad"),
        *("rollback", "report", "doctor", "tier add", "tier check", "run create"),
        *("catalog rebuild", "catalog check"),
    ],
)
def test_the_readme_shows_every_command(command: str) -> None:
    assert f"ckptgov {command}" in README


def every_error() -> list[type[errors.CkptgovError]]:
    found, todo = [], [errors.CkptgovError]
    while todo:
        one = todo.pop()
        found.append(one)
        todo += [child for child in one.__subclasses__() if child.__module__ == errors.__name__]
    return found


def test_every_exit_code_of_the_error_tree_is_documented() -> None:
    documented = {int(number) for number in re.findall(r"(?m)(?:^|\s{2,})(\d+) [a-z]", EXIT_CODES)}
    assert {one.exit_code for one in every_error()} <= documented


def test_the_tree_drawn_in_the_docstring_is_the_tree() -> None:
    drawn = dict(re.findall(r"(\w+)\s{2,}(\d+)", errors.__doc__ or ""))
    assert drawn == {one.__name__: str(one.exit_code) for one in every_error()}


@pytest.mark.parametrize("reason", list(Reason))
def test_the_readme_names_every_reason(reason: Reason) -> None:
    assert reason.value in README


def test_the_starter_configuration_loads(tmp_path: Path) -> None:
    shutil.copy(ROOT / "policies" / "starter.yaml", tmp_path / "ckptgov.yaml")
    settings = load_settings(str(tmp_path))
    assert [tier.name for tier in settings.tiers] == ["shared", "nvme"]
    assert len(settings.rules) == 2


def test_the_readme_names_every_room() -> None:
    rooms = [path.name for path in (ROOT / "ckptgov").iterdir() if (path / "__init__.py").exists()]
    assert [room for room in rooms if f"`{room}/`" not in README] == []
