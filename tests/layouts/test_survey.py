"""Where runs begin, and what one walk of a run tells."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ckptgov.errors import CouldNotLook
from ckptgov.layouts import survey as survey_module
from ckptgov.layouts.survey import find_run_roots, is_checkpoint
from ckptgov.layouts.tree import LookSettings, Tree
from ckptgov.model.checkpoint import Expect
from ckptgov.model.facts import Note, Pointer
from ckptgov.model.files import Entry, EntryKind
from ckptgov.storage.posix import PosixStorage

Build = Callable[..., bytes]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[PosixStorage]:
    made = PosixStorage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def step(samples: Path) -> Callable[[Path], None]:
    """Puts a whole DCP checkpoint at a path."""

    def put(path: Path) -> None:
        shutil.copytree(samples / "dcp/single/step_1", path)

    return put


def test_a_run_root_has_a_child_whose_name_carries_a_step(
    tmp_path: Path, storage: PosixStorage, step: Any
) -> None:
    step(tmp_path / "team/llm/ckpt/step_1")
    (tmp_path / "team/llm/logs").mkdir()
    for top in ("", "team", "team/llm", "team/llm/ckpt"):
        assert find_run_roots(storage, top) == ("team/llm/ckpt",)


def test_a_run_root_may_hold_a_checkpoint_without_a_step(
    tmp_path: Path, storage: PosixStorage, step: Any
) -> None:
    step(tmp_path / "run/handpicked")
    assert find_run_roots(storage, "") == ("run",)


def test_a_run_root_may_hold_a_checkpoint_file(
    tmp_path: Path, storage: PosixStorage, samples: Path
) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(samples / "lightning/single-file/last.ckpt", tmp_path / "run/last.ckpt")
    assert find_run_roots(storage, "") == ("run",)


def test_several_run_roots_are_all_told(tmp_path: Path, storage: PosixStorage, step: Any) -> None:
    step(tmp_path / "b/step_1")
    step(tmp_path / "a/ckpt/step_1")
    assert find_run_roots(storage, "") == ("a/ckpt", "b")


def test_everything_beneath_a_run_root_is_its_run(
    tmp_path: Path, storage: PosixStorage, step: Any, look: Any
) -> None:
    step(tmp_path / "step_1")
    step(tmp_path / "more/deeper/step_2")
    assert find_run_roots(storage, "") == ("",)
    assert look(tmp_path).whole == ["more/deeper/step_2", "step_1"]


def test_staging_links_and_our_own_directory_make_no_run_root(
    tmp_path: Path, storage: PosixStorage, step: Any
) -> None:
    step(tmp_path / "a/tmp-checkpoint-50")
    step(tmp_path / "b/.ckptgov/staging/step_1")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/step_5").symlink_to(tmp_path / "a")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/log_step_100.json").write_text("{}")
    assert find_run_roots(storage, "") == ()


def test_an_absent_top_is_an_error_and_not_none(storage: PosixStorage) -> None:
    with pytest.raises(FileNotFoundError):
        find_run_roots(storage, "gone")


def test_a_directory_or_file_that_is_a_checkpoint_says_so(
    tmp_path: Path, storage: PosixStorage, step: Any, samples: Path
) -> None:
    step(tmp_path / "run/step_1")
    shutil.copy(samples / "lightning/single-file/last.ckpt", tmp_path / "run/last.ckpt")
    (tmp_path / "run/link.ckpt").symlink_to("last.ckpt")
    assert is_checkpoint(storage, "run/step_1")
    assert is_checkpoint(storage, "run/last.ckpt")
    assert not is_checkpoint(storage, "run")
    assert not is_checkpoint(storage, "run/step_1/.metadata")
    assert not is_checkpoint(storage, "run/link.ckpt")
    assert not is_checkpoint(storage, "")
    with pytest.raises(FileNotFoundError):
        is_checkpoint(storage, "run/gone")


def test_a_trainers_output_with_final_weights_is_a_run_and_no_checkpoint(
    samples: Path, tmp_path: Path, storage: PosixStorage, look: Any
) -> None:
    shutil.copytree(samples / "hf-trainer/single", tmp_path / "out")
    inner = tmp_path / "out/checkpoint-2"
    for path in inner.glob("model*"):
        shutil.copy(path, tmp_path / "out")
    for name in ("config.json", "training_args.bin", "trainer_state.json"):
        shutil.copy(inner / name, tmp_path / "out")
    assert not is_checkpoint(storage, "out")
    assert is_checkpoint(storage, "out/checkpoint-2")
    assert find_run_roots(storage, "") == ("out",)
    assert look(tmp_path / "out").whole == ["checkpoint-2"]


def test_a_slash_in_a_metric_name_does_not_hide_a_checkpoint(
    tmp_path: Path, look: Any, torch_file: Build
) -> None:
    state = {"pytorch-lightning_version": "2.6.6", "optimizer_states": []}
    for number in (100, 200):
        target = tmp_path / f"epoch=1-step={number}-val"
        target.mkdir()
        content = torch_file({**state, "global_step": number})
        (target / "loss=0.41.ckpt").write_bytes(content)
    (tmp_path / "best_top10").mkdir()
    (tmp_path / "best_top10/acc_step_250.pth").write_bytes(torch_file({}))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/readme.txt").write_text("keep me")
    looked = look(tmp_path)
    assert [(s.name, s.step) for s in looked.sightings] == [
        ("best_top10/acc_step_250.pth", 250),
        ("epoch=1-step=100-val/loss=0.41.ckpt", 100),
        ("epoch=1-step=200-val/loss=0.41.ckpt", 200),
    ]
    assert looked.survey.staging == ()


@pytest.mark.parametrize(
    ("target", "kind", "words", "names"),
    [
        ("step_1", "alias", "-> step_1", "step_1"),
        ("./step_1/", "alias", "-> step_1", "step_1"),
        ("hop", "alias", "-> step_1", "step_1"),
        ("step_9", "dangling-link", "-> step_9: is not there", None),
        ("latest", "link-loop", "leads back to itself", "no pointer"),
        ("ring", "link-loop", "leads back to itself", "no pointer"),
        ("../elsewhere/step_1", "alias", "out of the run root", "step_1"),
        ("/old/cluster/run/step_1", "alias", "out of the run root", "step_1"),
        ("/old/cluster/run/step_8", "alias", "out of the run root", None),
    ],
)
def test_a_link_is_told_and_never_followed(
    tmp_path: Path, look: Any, step: Any, target: str, kind: str, words: str, names: str | None
) -> None:
    run = tmp_path / "run"
    step(run / "step_1")
    os.symlink(target, run / "latest")
    if target == "hop":
        os.symlink("step_1", run / "hop")
    if target == "ring":
        os.symlink("latest", run / "ring")
    looked = look(run)
    assert looked.whole == ["step_1"]
    (note,) = [note for note in looked.survey.aliases if note.path == "latest"]
    assert note.kind == kind
    assert words in note.text
    expected = () if names == "no pointer" else (Pointer("latest", target, names),)
    assert looked.survey.pointers == expected


def test_a_link_to_something_else_is_not_worth_telling(
    tmp_path: Path, look: Any, step: Any
) -> None:
    step(tmp_path / "step_1")
    (tmp_path / "logs").mkdir()
    (tmp_path / "log").symlink_to("logs")
    assert look(tmp_path).survey.aliases == ()


def test_a_link_to_the_parent_of_checkpoints_is_an_alias(
    tmp_path: Path, look: Any, step: Any
) -> None:
    step(tmp_path / "kept/step_1")
    (tmp_path / "best").symlink_to("kept")
    looked = look(tmp_path)
    assert looked.whole == ["kept/step_1"]
    assert looked.survey.aliases == (Note("alias", "best", "-> kept"),)


def test_staging_is_told_with_its_size_and_never_offered(
    tmp_path: Path, look: Any, step: Any
) -> None:
    step(tmp_path / "step_1")
    step(tmp_path / "tmp-checkpoint-50/step_7")
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    (tmp_path / ".tmpabc123").write_bytes(bytes(10))
    (tmp_path / ".nfs0000000012ab34cd").write_bytes(bytes(10))
    (tmp_path / ".ckptgov").mkdir()
    looked = look(tmp_path)
    assert looked.whole == ["step_1"]
    assert [(d.path, d.layout, d.bytes) for d in looked.survey.staging] == [
        (".tmpabc123", "safetensors", 10),
        ("2.orbax-checkpoint-tmp", "orbax", 0),
        ("tmp-checkpoint-50", "hf-trainer", 7967 + 121079),
    ]
    assert all(debris.newest_mtime_ns > 0 for debris in looked.survey.staging)


def test_names_that_are_no_utf8_survive(tmp_path: Path, look: Any, step: Any) -> None:
    step(tmp_path / os.fsdecode(b"caf\xe9-step_1"))
    assert look(tmp_path).whole == [os.fsdecode(b"caf\xe9-step_1")]


def test_a_directory_that_may_not_be_read_ends_the_look(
    tmp_path: Path, look: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step(tmp_path / "step_1")
    (tmp_path / "locked").mkdir()
    listed = PosixStorage.list

    def refuse(self: PosixStorage, path: str) -> object:
        if path == "locked":
            raise CouldNotLook("locked: not allowed")
        return listed(self, path)

    monkeypatch.setattr(PosixStorage, "list", refuse)
    with pytest.raises(CouldNotLook, match="locked"):
        look(tmp_path)


def test_too_deep_a_tree_is_an_error_and_not_a_part_of_the_answer(
    tmp_path: Path, look: Any, step: Any
) -> None:
    step(tmp_path / "step_1")
    (tmp_path / "/".join(["d"] * (survey_module.MAX_DEPTH + 1))).mkdir(parents=True)
    with pytest.raises(CouldNotLook, match="directories deep"):
        look(tmp_path)


def test_too_many_entries_are_an_error_with_a_hint(
    tmp_path: Path, look: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step(tmp_path / "step_1")
    monkeypatch.setattr("ckptgov.layouts.tree.MAX_ENTRIES", 3)
    for number in range(5):
        (tmp_path / f"file{number}").touch()
    with pytest.raises(CouldNotLook, match="more than 3 entries") as caught:
        look(tmp_path)
    assert caught.value.hint


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes one call about a path find it gone, each time or only the first ones."""

    def make(method: str, path: str, *, times: int = 10**6, really: bool = False) -> None:
        asked = getattr(PosixStorage, method)
        left = [times]

        def gone(self: PosixStorage, where: str) -> object:
            if where == path and left[0]:
                left[0] -= 1
                if really:
                    going = Path(self.root) / path
                    going.unlink() if going.is_file() else shutil.rmtree(going)
                raise FileNotFoundError(2, "gone", path)
            return asked(self, where)

        monkeypatch.setattr(PosixStorage, method, gone)

    return make


def test_a_directory_that_its_trainer_removes_meanwhile_is_not_there(
    tmp_path: Path, look: Any, step: Any, vanishing: Any
) -> None:
    for name in ("step_1", "step_2"):
        step(tmp_path / name)
    vanishing("list", "step_1", really=True)
    assert look(tmp_path).whole == ["step_2"]


def test_a_directory_that_changes_under_the_look_is_looked_at_again(
    tmp_path: Path, look: Any, step: Any, vanishing: Any
) -> None:
    step(tmp_path / "step_1")
    vanishing("list", "step_1", times=2)
    assert look(tmp_path).whole == ["step_1"]


DECLARED = (Expect(glob="step_*/*.bin", count=1, step=r"step_(\d+)"),)
"""Rules look from the run root at all that lies beneath it."""


def declared(run_root: Path, *steps: int) -> None:
    """Checkpoints of a form that only a rule knows."""
    for step in steps:
        (run_root / f"step_{step}").mkdir()
        (run_root / f"step_{step}/0.bin").write_bytes(b"bytes")


def test_a_declared_checkpoint_that_its_trainer_removes_meanwhile_is_not_there(
    tmp_path: Path, look: Any, vanishing: Any
) -> None:
    declared(tmp_path, 1, 2)
    vanishing("list", "step_1", really=True)
    assert look(tmp_path, rules=DECLARED).whole == ["step_2"]


def test_many_that_go_one_after_the_other_are_not_there(
    tmp_path: Path, look: Any, vanishing: Any
) -> None:
    declared(tmp_path, *range(9))
    for step in range(8):
        vanishing("list", f"step_{step}", really=True)
    assert look(tmp_path, rules=DECLARED).whole == ["step_8"]


@pytest.mark.parametrize("above", ["", "checkpoints"])
@pytest.mark.parametrize("really", [True, False])
def test_one_that_goes_beside_it_does_not_hold_up_a_look(
    tmp_path: Path, look: Any, monkeypatch: pytest.MonkeyPatch, above: str, really: bool
) -> None:
    """Whether accelerate's saves are that is told by those beside them; it removes the oldest."""
    for name in ("checkpoint_0", "checkpoint_1"):
        (tmp_path / above / name).mkdir(parents=True)
        (tmp_path / above / name / "model.safetensors").write_bytes(b"bytes")
    oldest = tmp_path / above / "checkpoint_0"
    (oldest / "random_states_0.pkl").write_bytes(b"bytes")
    listed, calls = PosixStorage.list, [0]

    def gone_once_told(self: PosixStorage, path: str) -> Sequence[Entry]:
        calls[0] += 1
        assert calls[0] < 200, "it never ends"
        told = listed(self, path)
        if path == above and oldest.exists():
            shutil.rmtree(oldest)
        elif path == above and not really:
            told = [*told, Entry("checkpoint_0", EntryKind.DIR)]
        return told

    monkeypatch.setattr(PosixStorage, "list", gone_once_told)
    found = [one.name for one in look(tmp_path).survey.found]
    assert found == [f"{above}/checkpoint_1" if above else "checkpoint_1"]


def test_what_goes_faster_than_it_is_looked_at_is_could_not_look(
    tmp_path: Path, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one each time, which is gone by then."""
    declared(tmp_path, 0)
    monkeypatch.setattr(survey_module, "_MOST_GONE", 5)
    listed, made = PosixStorage.list, [0]

    def one_more(self: PosixStorage, path: str) -> Sequence[Entry]:
        made[0] += path == ""
        assert made[0] < 50, "it never ends"
        phantom = [Entry(f"step_{made[0]}", EntryKind.DIR)] if path == "" else []
        return [*listed(self, path), *phantom]

    monkeypatch.setattr(PosixStorage, "list", one_more)
    with pytest.raises(CouldNotLook, match="changed while it was looked at"):
        look(tmp_path, rules=DECLARED)


def test_entries_that_are_listed_anew_count_once(
    tmp_path: Path, look: Any, vanishing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(tmp_path, *range(9))
    monkeypatch.setattr("ckptgov.layouts.tree.MAX_ENTRIES", 20)
    for step in range(8):
        vanishing("list", f"step_{step}", really=True)
    assert look(tmp_path, rules=DECLARED).whole == ["step_8"]


@pytest.mark.parametrize("above", ["", "many"])
def test_a_directory_that_only_its_parents_listing_tells_is_not_there(
    tmp_path: Path, look: Any, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    """As some object stores list a directory for a while after its last key went."""
    (tmp_path / "many").mkdir()
    declared(tmp_path / above, 2)
    listed = PosixStorage.list

    def with_phantom(self: PosixStorage, path: str) -> Sequence[Entry]:
        phantom = [Entry("step_1", EntryKind.DIR)] if path == above else []
        return [*phantom, *listed(self, path)]

    monkeypatch.setattr(PosixStorage, "list", with_phantom)
    rules = tuple(replace(rule, glob=f"**/{rule.glob}") for rule in DECLARED)
    name = f"{above}/step_2" if above else "step_2"
    assert look(tmp_path, rules=rules).whole == [name]
    with PosixStorage(tmp_path) as storage:
        assert find_run_roots(storage, "", LookSettings(now_ns=0, rules=rules)) == (above,)


def test_a_run_root_that_went_is_no_run_without_checkpoints(storage: PosixStorage) -> None:
    with (
        Tree(storage, "run", LookSettings(now_ns=0)) as tree,
        pytest.raises(FileNotFoundError),
    ):
        survey_module.survey(tree)


def test_a_pointer_that_goes_meanwhile_is_not_told(
    tmp_path: Path, look: Any, step: Any, vanishing: Any
) -> None:
    step(tmp_path / "step_1")
    (tmp_path / "latest").write_text("step_1")
    vanishing("open", "latest", times=1)
    assert look(tmp_path).survey.pointers == (Pointer("latest", "step_1", "step_1"),)
    vanishing("open", "latest", really=True)
    assert look(tmp_path).survey.pointers == ()


def test_a_directory_that_never_stands_still_is_could_not_look(
    tmp_path: Path, look: Any, step: Any, vanishing: Any
) -> None:
    step(tmp_path / "step_1")
    vanishing("list", "step_1")
    with pytest.raises(CouldNotLook, match="step_1: changed while it was looked at"):
        look(tmp_path)


@pytest.mark.parametrize(("method", "name"), [("stat", ".tmpabc123"), ("read_link", "latest")])
def test_a_temporary_file_or_link_that_goes_meanwhile_is_not_told(
    tmp_path: Path, look: Any, step: Any, vanishing: Any, method: str, name: str
) -> None:
    step(tmp_path / "step_1")
    (tmp_path / ".tmpabc123").touch()
    (tmp_path / "latest").symlink_to("step_1")
    vanishing(method, name)
    looked = look(tmp_path)
    assert looked.whole == ["step_1"]
    told = [d.path for d in looked.survey.staging] + [a.path for a in looked.survey.aliases]
    assert told == [other for other in (".tmpabc123", "latest") if other != name]
