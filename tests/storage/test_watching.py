"""The kernel tells that something changed; what it does not tell, a look finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptgov.storage import watching
from ckptgov.storage.watching import Watching


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watching]:
    with Watching() as made:
        if made.is_blind:
            pytest.skip("the kernel gives no watches here")
        assert made.watch([str(tmp_path)]) == 1
        yield made


def test_nothing_changed(watched: Watching) -> None:
    assert watched.wait(0) is False


def test_a_new_file_a_rename_and_a_removal_are_told(watched: Watching, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    assert watched.wait(5)
    (tmp_path / "a").rename(tmp_path / "b")
    assert watched.wait(5)
    (tmp_path / "b").unlink()
    assert watched.wait(5)
    assert watched.wait(0) is False


def test_what_is_not_watched_any_more_is_not_told(watched: Watching, tmp_path: Path) -> None:
    assert watched.watch([]) == 0
    watched.wait(0)  # that a watch ended is told as well
    (tmp_path / "a").write_text("x")
    assert watched.wait(0) is False


def test_a_directory_that_is_gone_is_left_out(watched: Watching, tmp_path: Path) -> None:
    assert watched.watch([str(tmp_path), str(tmp_path / "gone")]) == 1


def test_a_link_is_not_followed(watched: Watching, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    assert watched.watch([str(tmp_path / "link")]) == 0


def test_a_wait_can_be_ended_from_elsewhere(watched: Watching) -> None:
    watched.wake()
    watched.wake()
    assert watched.wait(60) is False


def test_without_watches_it_is_blind_and_waits_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def inotify_init1(self, flags: int) -> int:
            return -1

    monkeypatch.setattr(watching, "_library", Refusing)
    with Watching() as blind:
        assert blind.is_blind
        assert blind.watch([str(tmp_path)]) == 0
        assert blind.wait(0) is False
