"""Landing a checkpoint: all of it under its name, or none, whoever else is at it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Mapping

import pytest

from ckptgov.errors import StorageError
from ckptgov.model.checkpoint import Manifest
from ckptgov.model.settings import Proof
from ckptgov.storage.contract import ArrivalProof, Storage, Traits
from ckptgov.storage.memory import MemoryStorage
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.crashing import Crash, CrashingStorage
from ckptgov.work.copy import CopySettings, ShardSource, SourceFault, WrongArrival
from ckptgov.work.landing import Form, Landed, Landing, NameTaken, discard_staging, land

PIECE = 2**20
FILES = {"__0_0.distcp": b"a" * (PIECE * 2 + 1), "__1_0.distcp": b"b" * 99, ".metadata": b"index"}
ONE = CopySettings(threads=1)


class Land:
    """Lands a checkpoint of these files from memory, into ``run/`` of a target."""

    def __init__(self, manifest_of: Callable[..., Manifest]) -> None:
        self._manifest_of = manifest_of
        self.faults: list[SourceFault] = []

    def landing(
        self,
        target,
        files: Mapping[str, bytes] = FILES,
        *,
        name: str = "step_1",
        form: Form = Form.DIRECTORY,
        held: Mapping[str, bytes] | None = None,
        only: frozenset[str] | None = None,
        proof: Proof = Proof.READBACK,
        attempts: bool = True,
        copying: CopySettings = ONE,
    ) -> Landing:
        source = MemoryStorage("source")
        for path, content in (files if held is None else held).items():
            source.put_file(f"from/{path}" if path else "from", content)
        return Landing(
            manifest=self._manifest_of(files, name),
            form=form,
            sources={
                path: (
                    ShardSource(
                        storage=source, path=f"from/{path}" if path else "from", place="there"
                    ),
                )
                for path in (files if held is None else held)
            },
            target=target,
            run_root="run",
            sidecar="run/.ckptgov",
            proof=proof,
            copying=copying,
            on_fault=self.faults.append,
            may_take_attempt_name=attempts,
            only=only,
        )

    def __call__(self, target, files: Mapping[str, bytes] = FILES, **options) -> Landed:
        return land(self.landing(target, files, **options))


@pytest.fixture
def bring(manifest_of: Callable[..., Manifest]) -> Land:
    return Land(manifest_of)


@pytest.fixture(params=["memory", "posix"])
def target(request: pytest.FixtureRequest, tmp_path):
    """An empty tier with the run's directory."""
    if request.param == "posix":
        with PosixStorage(tmp_path) as storage:
            storage.make_dirs("run")
            yield storage
    else:
        storage = MemoryStorage("target")
        storage.make_dirs("run")
        yield storage


def tree(storage, top: str = "run") -> dict[str, bytes]:
    """Everything that lies beneath, but empty directories."""
    found: dict[str, bytes] = {}
    for entry in storage.list(top):
        path = f"{top}/{entry.name}" if top else entry.name
        if entry.kind.value == "dir":
            found.update(tree(storage, path))
        else:
            with storage.open(path) as file:
                found[path] = file.read_at(0, file.stat().bytes)
    return found


def below(name: str, files: Mapping[str, bytes] = FILES) -> dict[str, bytes]:
    return {f"run/{name}/{path}": content for path, content in files.items()}


def full_disk() -> StorageError:
    error = StorageError("No space left on device")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    return error


def test_a_checkpoint_stands_whole_under_its_name_and_nothing_beside_it(target, bring) -> None:
    landed = bring(target)
    assert tree(target) == below("step_1")
    assert landed.is_whole
    assert not landed.stood_already
    assert {path for path, _ in landed.tokens} == set(FILES)
    total = sum(map(len, FILES.values()))
    assert (landed.sent_bytes, landed.read_at) == (total, (("there", 3, total),))


@pytest.mark.parametrize("threads", [1, 4])
def test_a_wrong_byte_at_the_source_lands_nothing(target, bring, threads: int) -> None:
    held = {**FILES, "__1_0.distcp": b"b" * 98 + b"c"}
    with pytest.raises(StorageError.__mro__[1], match="no source gave its bytes"):
        bring(target, held=held, copying=CopySettings(threads=threads))
    assert not any(path.startswith("run/step_1") for path in tree(target))
    assert [one.shard for one in bring.faults] == ["__1_0.distcp"]


def test_markers_arrive_after_everything_they_vouch_for(bring) -> None:
    target = CrashingStorage(MemoryStorage("target"))
    bring(target)
    finished = [path.rpartition("/")[2] for call, path in target.calls if call == "finish"]
    assert finished[-1] == ".metadata"


def test_a_marker_does_not_even_start_while_a_shard_has_no_source(target, bring) -> None:
    held = {path: content for path, content in FILES.items() if path != "__1_0.distcp"}
    landed = bring(target, held=held)
    assert set(landed.missing) == {"__1_0.distcp", ".metadata"}
    assert [path.rpartition("/")[2] for path in tree(target)] == ["__0_0.distcp"]
    assert landed.tokens == ()


def test_what_one_node_could_not_bring_another_completes(target, bring) -> None:
    first = {path: FILES[path] for path in ("__0_0.distcp",)}
    rest = {path: FILES[path] for path in ("__1_0.distcp", ".metadata")}
    assert not bring(target, held=first).is_whole
    landed = bring(target, held=rest)
    assert landed.is_whole
    assert tree(target) == below("step_1")


def test_killed_anywhere_the_next_try_finishes_it_and_nothing_half_was_visible(bring) -> None:
    """Walks through every mutating call."""
    clean = CrashingStorage(MemoryStorage("clean"))
    bring(clean)
    for point in range(len(clean.calls)):
        inner = MemoryStorage("target")
        with pytest.raises(Crash):
            bring(CrashingStorage(inner, point))
        inner.make_dirs("run")
        visible = {p: c for p, c in tree(inner).items() if p.startswith("run/step_1")}
        assert visible in ({}, below("step_1")), clean.calls[point]
        assert bring(inner).is_whole
        assert tree(inner) == below("step_1"), clean.calls[point]


def test_shards_that_arrived_whole_are_not_sent_again(target, bring) -> None:
    moved: list[int] = []
    copying = CopySettings(threads=1, progress=moved.append, stop=lambda: sum(moved) > 2 * PIECE)
    stopped = bring(target, copying=copying)
    assert not stopped.is_whole
    landed = bring(target)
    assert landed.sent_bytes == len(FILES["__1_0.distcp"]) + len(FILES[".metadata"])
    assert tree(target) == below("step_1")


@pytest.mark.parametrize("proof", Proof)
def test_a_staged_shard_with_wrong_bytes_is_replaced(target, bring, proof: Proof) -> None:
    moved: list[int] = []
    copying = CopySettings(threads=1, progress=moved.append, stop=lambda: sum(moved) > 2 * PIECE)
    bring(target, copying=copying)
    (staged,) = [path for path in tree(target) if path.endswith("__0_0.distcp")]
    target.remove(staged)
    target.publish(staged, [b"x" * len(FILES["__0_0.distcp"])])
    assert bring(target, proof=proof).is_whole
    assert tree(target) == below("step_1")


class Flipping(MemoryStorage):
    """A tier that gives another byte back than was written."""

    def open(self, path: str):
        file = super().open(path)
        read_into = file.read_into

        def reading(buffer: memoryview, offset: int) -> int:
            count = read_into(buffer, offset)
            if path.endswith("__1_0.distcp"):
                buffer[0] ^= 1
            return count

        file.read_into = reading
        return file


def test_a_tier_that_gives_other_bytes_back_keeps_nothing_of_it(bring) -> None:
    target = Flipping("target")
    with pytest.raises(WrongArrival, match="other bytes came back"):
        bring(target)
    assert not any(path.endswith("__1_0.distcp") for path in tree(target))


def test_without_proof_nothing_is_vouched_for(target, bring) -> None:
    landed = bring(target, proof=Proof.NONE)
    assert (landed.is_whole, landed.tokens) == (True, ())


class TestANameThatIsTaken:
    def test_by_an_equal_copy_is_compared_and_accepted(self, target, bring) -> None:
        bring(target)
        landed = bring(target, held={})
        assert (landed.stood_already, landed.sent_bytes) == (True, 0)
        assert {path for path, _ in landed.tokens} == set(FILES)

    @pytest.mark.parametrize("change", ["bytes", "size", "gone", "kind"])
    def test_by_something_else_is_left_alone_and_another_name_taken(
        self, target, bring, change: str
    ) -> None:
        bring(target)
        victim = "run/step_1/__1_0.distcp"
        target.remove(victim)
        if change == "kind":
            target.make_dirs(victim)
        elif change != "gone":
            target.publish(victim, [b"c" * (99 if change == "bytes" else 98)])
        before = tree(target)
        landed = bring(target)
        assert landed.name == "attempt-1/step_1"
        assert tree(target) == {**before, **below("attempt-1/step_1")}

    def test_by_something_else_is_refused_where_no_other_name_will_do(self, target, bring) -> None:
        target.publish("run/step_1", [b"a file"])
        with pytest.raises(NameTaken, match="other bytes"):
            bring(target, attempts=False)
        assert tree(target) == {"run/step_1": b"a file"}

    def test_what_was_staged_for_it_goes_once_it_stands(self, target, bring) -> None:
        moved: list[int] = []
        bring(
            target,
            copying=CopySettings(
                threads=1, progress=moved.append, stop=lambda: sum(moved) > 2 * PIECE
            ),
        )
        for path, content in FILES.items():
            target.publish(f"run/step_1/{path}", [content])
        assert bring(target).stood_already
        assert tree(target) == below("step_1")


class TestTwoMovers:
    @pytest.mark.parametrize("form", [Form.DIRECTORY, Form.GROUP])
    def test_racing_leave_one_whole_copy(self, tmp_path, bring, form: Form) -> None:
        target = PosixStorage(tmp_path)
        target.make_dirs("run")
        files = FILES if form is Form.DIRECTORY else GROUP
        name = "step_1" if form is Form.DIRECTORY else "model"
        begin = threading.Barrier(3)
        landed: list[Landed] = []

        def move() -> None:
            begin.wait(10)
            landed.append(bring(target, files, form=form, name=name))

        movers = [threading.Thread(target=move) for _ in range(3)]
        for mover in movers:
            mover.start()
        for mover in movers:
            mover.join(60)
        assert [one.name for one in landed] == [name] * 3
        assert all(one.is_whole for one in landed)
        wanted = below("step_1") if form is Form.DIRECTORY else beside(GROUP)
        assert tree(target) == wanted
        target.close()

    @pytest.mark.parametrize("form", [Form.DIRECTORY, Form.GROUP])
    def test_one_that_is_overtaken_at_any_point_accepts_the_others(
        self, bring, tmp_path, form: Form
    ) -> None:
        """The other one does all of it, just before one mutating call of ours."""
        files = FILES if form is Form.DIRECTORY else GROUP
        name = "step_1" if form is Form.DIRECTORY else "model"
        clean = CrashingStorage(MemoryStorage("clean"))
        bring(clean, files, form=form, name=name)
        wanted = below("step_1") if form is Form.DIRECTORY else beside(GROUP)
        for point in range(len(clean.calls)):
            (tmp_path / str(point)).mkdir()
            with PosixStorage(tmp_path / str(point)) as inner:
                other = bring.landing(inner, files, form=form, name=name)
                landed = bring(Overtaken(inner, point, other), files, form=form, name=name)
                assert landed.is_whole
                assert tree(inner) == wanted, clean.calls[point]

    def test_what_a_living_one_is_writing_is_not_taken_from_it(self, tmp_path) -> None:
        with PosixStorage(tmp_path) as target:
            delivery = target.receive("staging/one", 3)
            delivery.write(0, memoryview(b"abc"))
            target.publish("staging/two", [b"left behind"])
            discard_staging(target, "staging")
            delivery.finish()
            assert tree(target, "staging") == {"staging/one": b"abc"}

    def test_an_error_while_another_one_finished_it_is_no_failure(self, bring) -> None:
        inner = MemoryStorage("target")
        assert bring(Robbed(inner, bring.landing(inner))).stood_already
        assert tree(inner) == below("step_1")

    def test_an_error_is_told_where_nobody_finished_it(self, bring) -> None:
        with pytest.raises(StorageError, match="the name was taken away"):
            bring(Robbed(MemoryStorage("target"), None))


class Robbed(CrashingStorage):
    """The first delivery fails, because somebody else just landed the same, or for no reason."""

    def __init__(self, inner: MemoryStorage, other: Landing | None) -> None:
        super().__init__(inner)
        self._other = other

    def receive(self, path: str, size_bytes: int, **options):
        if self._other is not None:
            land(self._other)
        raise StorageError("the name was taken away")


class Overtaken(CrashingStorage):
    """Somebody else lands the same just before the mutating call number ``point``."""

    def __init__(self, inner: PosixStorage, point: int, other: Landing) -> None:
        super().__init__(inner)
        self._point = point
        self._other = other

    def _mutate(self, call: str, path: str) -> None:
        if len(self.calls) == self._point:
            self._point = -1
            mover = threading.Thread(target=land, args=(self._other,))
            mover.start()
            mover.join(60)
        super()._mutate(call, path)


GROUP = {"model-a.pt": b"1" * 10, "model-b.pt": b"2" * 10}


def beside(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"run/{path}": content for path, content in files.items()}


class TestFilesBesideOthers:
    def test_a_group_joins_the_files_of_other_checkpoints(self, target, bring) -> None:
        target.publish("run/other-a.pt", [b"x"])
        landed = bring(target, GROUP, form=Form.GROUP, name="model")
        assert landed.is_whole
        assert tree(target) == {"run/other-a.pt": b"x", **beside(GROUP)}

    def test_an_interrupted_one_goes_on_with_what_stands(self, target, bring) -> None:
        target.publish("run/model-a.pt", [GROUP["model-a.pt"]])
        landed = bring(target, GROUP, form=Form.GROUP, name="model")
        assert (landed.is_whole, landed.sent_bytes) == (True, 10)
        assert tree(target) == beside(GROUP)

    def test_killed_anywhere_the_next_try_finishes_it(self, bring) -> None:
        clean = CrashingStorage(MemoryStorage("clean"))
        bring(clean, GROUP, form=Form.GROUP, name="model")
        for point in range(len(clean.calls)):
            inner = MemoryStorage("target")
            with pytest.raises(Crash):
                bring(CrashingStorage(inner, point), GROUP, form=Form.GROUP, name="model")
            assert bring(inner, GROUP, form=Form.GROUP, name="model").is_whole
            assert tree(inner) == beside(GROUP), clean.calls[point]

    def test_other_bytes_under_one_name_are_left_alone(self, target, bring) -> None:
        target.publish("run/model-b.pt", [b"3" * 10])
        landed = bring(target, GROUP, form=Form.GROUP, name="model")
        assert landed.name == "attempt-1/model"
        assert tree(target) == {
            "run/model-b.pt": b"3" * 10,
            **{f"run/attempt-1/{path}": content for path, content in GROUP.items()},
        }

    def test_a_single_file_lands_under_its_name(self, target, bring) -> None:
        landed = bring(target, {"": b"weights"}, form=Form.FILE, name="a/last.ckpt")
        assert landed.is_whole
        assert tree(target) == {"run/a/last.ckpt": b"weights"}
        assert bring(target, {"": b"weights"}, form=Form.FILE, name="a/last.ckpt").stood_already


class TestSomeShardsOnly:
    def test_only_they_are_brought(self, target, bring) -> None:
        landed = bring(target, only=frozenset({"__1_0.distcp"}))
        assert landed.is_whole
        assert tree(target) == {"run/step_1/__1_0.distcp": FILES["__1_0.distcp"]}

    def test_more_of_them_join_those_that_stand(self, target, bring) -> None:
        bring(target, only=frozenset({"__1_0.distcp"}))
        landed = bring(target, only=frozenset({"__0_0.distcp", "__1_0.distcp"}))
        assert landed.sent_bytes == len(FILES["__0_0.distcp"])
        assert set(tree(target)) == {"run/step_1/__0_0.distcp", "run/step_1/__1_0.distcp"}


@pytest.mark.parametrize("form", [Form.DIRECTORY, Form.GROUP])
def test_a_full_tier_is_left_without_anything_staged(bring, form: Form) -> None:
    target = Full("target")
    files, name = (FILES, "step_1") if form is Form.DIRECTORY else (GROUP, "model")
    with pytest.raises(StorageError, match="No space left"):
        bring(target, files, form=form, name=name)
    assert tree(target) == {}


class Full(MemoryStorage):
    """Room for one file only."""

    def receive(self, path: str, size_bytes: int, **options):
        if any(name.endswith(("distcp", ".pt")) for name in tree(self, "")):
            raise full_disk()
        return super().receive(path, size_bytes, **options)


def test_a_stop_between_the_shards_leaves_them_for_the_next_try(target, bring) -> None:
    landed = bring(target, copying=CopySettings(threads=2, stop=lambda: True))
    assert set(landed.missing) == set(FILES)
    assert tree(target) == {}


class Meddling(CrashingStorage):
    """Does something just before the first mutating call of a kind, as another process might."""

    def __init__(self, inner: Storage, call: str, meddle: Callable[[], object]) -> None:
        super().__init__(inner)
        self._call = call
        self._meddle = meddle

    def _mutate(self, call: str, path: str) -> None:
        super()._mutate(call, path)
        if call == self._call:
            self._call = ""
            self._meddle()


class Keys(MemoryStorage):
    """A tree that is written to as an object store is: nothing staged, nothing renamed."""

    @property
    def traits(self) -> Traits:
        return Traits(has_directories=False, has_links=False)


class TestWhatAnotherProcessDoesMeanwhile:
    def test_a_set_that_lost_a_shard_as_it_was_renamed_does_not_keep_the_name(
        self, target, bring
    ) -> None:
        staged = bring.landing(target).staging
        robbed = Meddling(target, "rename_dir", lambda: target.remove(f"{staged}/__1_0.distcp"))
        with pytest.raises(StorageError, match="a part of it was removed"):
            bring(robbed)
        assert not any(path.startswith("run/step_1") for path in tree(target))
        landed = bring(target)
        assert (landed.name, landed.sent_bytes) == ("step_1", len(FILES["__1_0.distcp"]))

    def test_an_object_put_in_the_place_of_ours_is_left_alone(self, bring) -> None:
        theirs = "run/step_1/__1_0.distcp"

        class Replaced(Keys):
            def open(self, path: str):
                if path == theirs and self.stat(theirs).bytes == 99:
                    self.put_file(theirs, b"c" * 98)
                return super().open(path)

        target = Replaced("target")
        landed = bring(target)
        assert landed.name == "attempt-1/step_1"
        assert tree(target)[theirs] == b"c" * 98


class TestUnderKeys:
    def test_nothing_is_added_to_another_checkpoint_of_the_same_name(self, bring) -> None:
        target = Keys("target")
        others = {"__0_0.distcp": FILES["__0_0.distcp"], "__1_0.distcp": b"c" * 99}
        for path, content in others.items():
            target.put_file(f"run/step_1/{path}", content)
        landed = bring(target)
        assert landed.name == "attempt-1/step_1"
        assert tree(target) == {**below("step_1", others), **below("attempt-1/step_1")}

    def test_what_stands_is_compared_and_only_the_rest_is_sent(self, bring) -> None:
        target = Keys("target")
        target.put_file("run/step_1/__0_0.distcp", FILES["__0_0.distcp"])
        landed = bring(target)
        assert (landed.sent_bytes, landed.resumed_bytes) == (99 + 5, 2 * PIECE + 1)
        assert {path for path, _ in landed.tokens} == set(FILES)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "other"),
        [
            ("attempt-final", "attempt-1/attempt-final"),
            ("attempt-x/step_1", "attempt-1/attempt-x/step_1"),
            ("attempt-1/step_1", "attempt-2/step_1"),
        ],
    )
    def test_of_trainers_that_look_like_ours_are_kept_whole(
        self, target, bring, name: str, other: str
    ) -> None:
        target.make_dirs(f"run/{name}")
        assert bring(target, name=name).name == other

    def test_a_group_is_not_hidden_by_a_directory_of_its_name(self, target, bring) -> None:
        target.make_dirs("run/model")
        landed = bring(target, GROUP, form=Form.GROUP, name="model")
        assert landed.name == "attempt-1/model"

    def test_some_shards_of_a_directory_do_not_go_below_a_file(self, target, bring) -> None:
        target.publish("run/step_1", [b"a file"])
        with pytest.raises(NameTaken):
            bring(target, only=frozenset({"__1_0.distcp"}), attempts=False)

    def test_a_file_where_staging_should_be_is_an_error_of_the_tier(self, target, bring) -> None:
        target.publish("run/.ckptgov/staging", [b"planted"])
        with pytest.raises(StorageError, match="staging"):
            bring(target)

    @pytest.mark.parametrize("path", [".ckptgov/journal/1.sealed.json", "a/.ckptgov-tmp-1"])
    def test_of_our_own_files_are_never_taken_from_a_manifest(
        self, target, bring, path: str
    ) -> None:
        with pytest.raises(StorageError, match="own files"):
            bring(target, {path: b"planted"}, form=Form.GROUP, name="model")
        assert tree(target) == {}


class Claiming(MemoryStorage):
    """A tier whose deliveries claim a proof of arrival; ``read`` tells what was read of it."""

    def __init__(self, claim: ArrivalProof) -> None:
        super().__init__("target")
        self.claim = claim
        self.read: list[str] = []

    def receive(self, path: str, size_bytes: int, **options):
        delivery = super().receive(path, size_bytes, **options)
        finish = delivery.finish
        delivery.finish = lambda: (finish()[0], self.claim)
        return delivery

    def open(self, path: str):
        self.read.append(path)
        return super().open(path)


class TestProofOfArrival:
    """Which bytes count as compared: what the store checked, where it was seen to check."""

    def test_a_shard_the_store_did_not_check_is_read_back(self, bring) -> None:
        target = Claiming(ArrivalProof.NONE)
        assert bring(target, proof=Proof.ARRIVAL_CHECKSUM).tokens
        assert len(target.read) == len(FILES)

    def test_one_that_it_checked_is_not(self, bring) -> None:
        target = Claiming(ArrivalProof.CHECKSUM)
        assert bring(target, proof=Proof.ARRIVAL_CHECKSUM).tokens
        assert target.read == []

    def test_where_reading_back_is_asked_for_no_claim_will_do(self, bring) -> None:
        target = Claiming(ArrivalProof.CHECKSUM)
        assert bring(target, proof=Proof.READBACK).tokens
        assert len(target.read) == len(FILES)

    @pytest.mark.parametrize("proof", [Proof.ARRIVAL_CHECKSUM, Proof.NONE])
    def test_what_stood_there_before_is_always_read(self, bring, proof: Proof) -> None:
        target = Claiming(ArrivalProof.CHECKSUM)
        bring(target, proof=Proof.ARRIVAL_CHECKSUM)
        assert bring(target, proof=proof).stood_already
        assert len(target.read) == len(FILES)
