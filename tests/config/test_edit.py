from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ckptgov.config import document, edit
from ckptgov.config.edit import add_tier
from ckptgov.config.load import load_settings
from ckptgov.errors import ConfigError
from ckptgov.model.settings import Scope, TierSettings

NEW = TierSettings(name="new", root="/new")
LINE = "{name: new, url: /new, scope: shared, ingest: false}"


@pytest.fixture(params=["c", "python"])
def either_parser(request, monkeypatch):
    loader = yaml.SafeLoader if request.param == "python" else yaml.CSafeLoader
    monkeypatch.setattr(document, "_LOADER", loader)


def edited(tmp_path, text: str) -> str:
    path = tmp_path / "ckptgov.yaml"
    path.write_bytes(text.encode())
    before = load_settings(str(tmp_path))
    add_tier(str(tmp_path), NEW)
    assert load_settings(str(tmp_path)).tiers == (*before.tiers, NEW)
    return path.read_bytes().decode()


CASES = [
    ("", f"tiers:\n  - {LINE}\n"),
    ("# mine\n", f"# mine\ntiers:\n  - {LINE}\n"),
    ("# mine", f"# mine\ntiers:\n  - {LINE}\n"),
    ("---\n", f"---\ntiers:\n  - {LINE}\n"),
    ("settle: 1s # quick\n# end\n", f"settle: 1s # quick\ntiers:\n  - {LINE}\n# end\n"),
    ("settle: 1s", f"settle: 1s\ntiers:\n  - {LINE}\n"),
    ("  settle: 1s\n", f"  settle: 1s\n  tiers:\n    - {LINE}\n"),
    ("tiers:\n", f"tiers:\n  - {LINE}\n"),
    ("tiers:", f"tiers:\n  - {LINE}\n"),
    ("tiers: # none\n# - {}\nsettle: 1s\n", f"tiers: # none\n  - {LINE}\n# - {{}}\nsettle: 1s\n"),
    ("tiers: ~ # none\n", f"tiers: [{LINE}] # none\n"),
    ("tiers: []\n", f"tiers: [{LINE}]\n"),
    ("{}\n", "{tiers: [" + LINE + "]}\n"),
    ("{settle: 1s}\n", "{settle: 1s, tiers: [" + LINE + "]}\n"),
    ("tiers: [{name: a, url: /a}] # x\n", f"tiers: [{{name: a, url: /a}}, {LINE}] # x\n"),
    (
        "tiers: [\n  {name: a, url: /a}, # x\n]\n",
        f"tiers: [\n  {{name: a, url: /a}}, # x\n {LINE}]\n",
    ),
    (
        "tiers:\n- {name: a, url: /a} # x\n\n# next\nsettle: 1s\n",
        f"tiers:\n- {{name: a, url: /a}} # x\n- {LINE}\n\n# next\nsettle: 1s\n",
    ),
    (
        "tiers:\n    - name: a # x\n      url: /a # y\n\n# end",
        f"tiers:\n    - name: a # x\n      url: /a # y\n    - {LINE}\n\n# end",
    ),
    (
        "tiers:\n  - name: a\n    url: >-\n      /a\n\nsettle: 1s\n",
        f"tiers:\n  - name: a\n    url: >-\n      /a\n\n  - {LINE}\nsettle: 1s\n",
    ),
    ("settle: 1s\r\ntiers:\r\n", f"settle: 1s\r\ntiers:\r\n  - {LINE}\r\n"),
    ("\ufeffsettle: 1s\n", f"\ufeffsettle: 1s\ntiers:\n  - {LINE}\n"),
    ("settle: 1s\n...\n", f"settle: 1s\ntiers:\n  - {LINE}\n...\n"),
    ("# é \U0001f600\ntiers: []\n", f"# é \U0001f600\ntiers: [{LINE}]\n"),
]


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize(("before", "after"), CASES)
def test_an_added_tier_leaves_everything_else_as_it_was(tmp_path, before, after):
    assert edited(tmp_path, before) == after


@pytest.mark.usefixtures("either_parser")
def test_a_tier_is_added_to_an_empty_key_within_braces(tmp_path):
    assert LINE in edited(tmp_path, "{tiers: , settle: 1s}\n")


def test_home_and_file_are_made_for_their_owner_only(tmp_path):
    home = tmp_path / "deep" / "home"
    add_tier(str(home), NEW)
    assert load_settings(str(home)).tiers == (NEW,)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "ckptgov.yaml").stat().st_mode) == 0o600


def test_the_files_mode_survives_an_edit(tmp_path):
    (tmp_path / "ckptgov.yaml").write_text("settle: 1s\n")
    (tmp_path / "ckptgov.yaml").chmod(0o640)
    add_tier(str(tmp_path), NEW)
    assert stat.S_IMODE((tmp_path / "ckptgov.yaml").stat().st_mode) == 0o640


def test_one_tier_name_may_be_added_for_each_node(tmp_path):
    for node in ("n1", "n2"):
        add_tier(
            str(tmp_path), TierSettings(name="nvme", root="/nvme", scope=Scope.NODE, node=node)
        )
    assert [tier.node for tier in load_settings(str(tmp_path)).tiers] == ["n1", "n2"]


def test_a_name_that_is_something_else_without_quotes_stays_a_name(tmp_path):
    names = ["yes", "null", "12", "1e3"]
    for name in names:
        add_tier(str(tmp_path), TierSettings(name=name, root=f"/{name}"))
    assert [tier.name for tier in load_settings(str(tmp_path)).tiers] == names


@given(
    name=st.text(
        st.characters(blacklist_categories=("Cs",), blacklist_characters="\0/"), min_size=1
    ).filter(lambda name: name not in {".", ".."})
)
def test_any_root_survives_being_written(tmp_path_factory, name):
    home = tmp_path_factory.mktemp("home", numbered=True)
    tier = TierSettings(name="new", root=f"/r/{name}")
    add_tier(str(home), tier)
    assert load_settings(str(home)).tiers == (tier,)


def test_a_root_that_is_not_utf_8_is_written_as_a_url(tmp_path):
    tier = TierSettings(name="new", root="/r/\udcff")
    add_tier(str(tmp_path), tier)
    assert load_settings(str(tmp_path)).tiers == (tier,)
    assert "file:///r/%FF" in (tmp_path / "ckptgov.yaml").read_text()


UNCHANGED = [
    ("tiers:\n  - {name: new, url: /other}\n", "declared twice"),
    ("tiers:\n  - {name: other, url: /new/below}\n", "inside or around"),
    ("settle: soon\n", "a length of time"),
]


@pytest.mark.parametrize(("text", "says"), UNCHANGED)
def test_an_edit_that_would_not_load_changes_nothing(tmp_path, text, says):
    path = tmp_path / "ckptgov.yaml"
    path.write_text(text)
    inode = path.stat().st_ino
    with pytest.raises(ConfigError, match=says):
        add_tier(str(tmp_path), NEW)
    assert path.read_text() == text
    assert path.stat().st_ino == inode
    assert sorted(os.listdir(tmp_path)) == ["ckptgov.yaml", "ckptgov.yaml.lock"]


def test_a_refused_entry_is_shown_for_adding_by_hand(tmp_path):
    (tmp_path / "ckptgov.yaml").write_text("tiers:\n  - {name: new, url: /other}\n")
    with pytest.raises(ConfigError) as caught:
        add_tier(str(tmp_path), NEW)
    assert LINE in (caught.value.hint or "")


def test_nothing_is_written_through_a_symlink(tmp_path):
    real = tmp_path / "real.yaml"
    real.write_text("settle: 1s\n")
    (tmp_path / "ckptgov.yaml").symlink_to(real)
    with pytest.raises(ConfigError, match="symlink"):
        add_tier(str(tmp_path), NEW)
    assert real.read_text() == "settle: 1s\n"
    assert (tmp_path / "ckptgov.yaml").is_symlink()


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch):
    (tmp_path / "ckptgov.yaml").write_text("settle: 1s\n")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(edit.os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        add_tier(str(tmp_path), NEW)
    assert (tmp_path / "ckptgov.yaml").read_text() == "settle: 1s\n"
    assert not (tmp_path / "ckptgov.yaml.new").exists()


def test_a_killed_editors_draft_is_no_obstacle(tmp_path):
    (tmp_path / "ckptgov.yaml.new").write_text("half of a fi")
    add_tier(str(tmp_path), NEW)
    assert load_settings(str(tmp_path)).tiers == (NEW,)
    assert not (tmp_path / "ckptgov.yaml.new").exists()


def test_a_change_by_another_editor_is_not_overwritten(tmp_path, monkeypatch):
    path = tmp_path / "ckptgov.yaml"
    path.write_text("settle: 1s\n")
    read = edit.read_text

    def read_then_disturb(name: str) -> str | None:
        text = read(name)
        path.write_text("settle: 2s # by hand\n")
        return text

    monkeypatch.setattr(edit, "read_text", read_then_disturb)
    with pytest.raises(ConfigError, match="changed while it was being edited"):
        add_tier(str(tmp_path), NEW)
    assert path.read_text() == "settle: 2s # by hand\n"


def test_editors_at_the_same_time_lose_no_entry(tmp_path):
    script = textwrap.dedent(
        """
        import sys
        from ckptgov.config.edit import add_tier
        from ckptgov.model.settings import TierSettings
        for number in range(5):
            name = f"t{sys.argv[2]}-{number}"
            add_tier(sys.argv[1], TierSettings(name=name, root="/" + name))
        """
    )
    editors = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(number)])
        for number in range(4)
    ]
    assert [editor.wait(timeout=60) for editor in editors] == [0] * 4
    assert len({tier.name for tier in load_settings(str(tmp_path)).tiers}) == 20
