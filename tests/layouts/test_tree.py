"""What layouts see of a run root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptgov.errors import Malformed
from ckptgov.layouts.base import LookSettings, Tree, join, members_root, split
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import Found
from ckptgov.model.files import EntryKind
from ckptgov.storage.posix import PosixStorage


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    run = tmp_path / "team/run"
    (run / "a/.ckptgov").mkdir(parents=True)
    (run / "a/.ckptgov/ours").touch()
    (run / "a/b").mkdir()
    (run / "a/b/deep.bin").write_bytes(b"12345")
    (run / "a/top.bin").touch()
    (run / "a/link").symlink_to("b")
    storage = PosixStorage(tmp_path)
    with Tree(storage, "team/run", LookSettings(now_ns=0)) as made:
        yield made
    storage.close()


def test_paths_are_below_the_run_root(tree: Tree) -> None:
    assert tree.dirs("") == ("a",)
    assert tree.stat("a/b/deep.bin").bytes == 5
    assert tree.read_link("a/link") == "b"
    with tree.open("a/b/deep.bin") as file:
        assert file.read_at(1, 2) == b"23"


def test_files_below_are_named_from_there_without_links_and_our_own(tree: Tree) -> None:
    assert tree.files_below("a") == ("b/deep.bin", "top.bin")
    assert tree.entries_below("a", EntryKind.SYMLINK) == ("link",)


def test_nothing_is_behind_a_link(tree: Tree) -> None:
    assert tree.kind("a/link") is EntryKind.SYMLINK
    assert tree.kind("a/link/deep.bin") is None
    assert not tree.exists("a/absent")
    assert not tree.is_dir("a/link")


def test_one_look_sees_one_moment(tree: Tree, tmp_path: Path) -> None:
    before = tree.names("a"), tree.stat("a/top.bin")
    (tmp_path / "team/run/a/later").touch()
    (tmp_path / "team/run/a/top.bin").write_text("longer")
    assert (tree.names("a"), tree.stat("a/top.bin")) == before


def test_a_file_over_the_cap_is_not_read(tree: Tree) -> None:
    assert tree.read_whole("a/b/deep.bin", 5) == b"12345"
    with pytest.raises(Malformed, match="5 bytes, more than the 4 allowed"):
        tree.read_whole("a/b/deep.bin", 4)


def test_a_failed_look_is_not_remembered(tree: Tree, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tree.list("new")
    (tmp_path / "team/run/new").mkdir()
    assert tree.list("new") == ()


@pytest.mark.parametrize(
    ("name", "files", "root"),
    [
        ("step_1", (), "step_1"),
        ("flat/ckpt_5", ("flat/ckpt_5-shard0.pt", "flat/ckpt_5-shard1.pt"), "flat"),
        ("ckpt_5", ("ckpt_5-shard0.pt",), ""),
        ("step_5", ("step_5/actor/rank_0.pt",), "step_5"),
    ],
)
def test_shard_paths_hang_from_the_directory_that_holds_the_set(
    name: str, files: tuple[str, ...], root: str
) -> None:
    found = Found(name=name, layout="x", step=None, step_kind=StepKind.NONE, files=files)
    assert members_root(found) == root


def test_joining_and_splitting_know_the_root() -> None:
    assert (join("", "a"), join("a", ""), join("a", "b")) == ("a", "a", "a/b")
    assert (split("a"), split("a/b/c")) == (("", "a"), ("a/b", "c"))
