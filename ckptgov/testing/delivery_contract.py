"""The promises of ``Delivery``, ``pending`` and ``forget``: a part of the contract suite."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from ckptgov.errors import PathEscapes, StorageError
from ckptgov.model.files import Attributes
from ckptgov.storage.contract import Delivery, Storage
from ckptgov.testing._contract_base import ContractBase, content, names


def deliver(delivery: Delivery, content: bytes, piece_bytes: int) -> None:
    """Hand over what does not stand already, as every mover does."""
    for offset in range(0, len(content), piece_bytes):
        piece = memoryview(content)[offset : offset + piece_bytes]
        if not (delivery.stands(offset, len(piece)) and delivery.matches(offset, piece)):
            delivery.write(offset, piece)


class DeliveryContract(ContractBase):
    """Run as a part of ``StorageContract``."""

    def sized(self, storage: Storage, pieces: int = 3) -> tuple[bytes, int]:
        """A file of so many pieces, the last one shorter, and the size of the others."""
        size = storage.traits.piece_bytes
        return b"".join(bytes([65 + at]) * size for at in range(pieces))[:-7], size

    def test_what_was_delivered_can_be_read_back(self, storage: Storage) -> None:
        wanted, size = self.sized(storage)
        delivery = storage.receive("d/a", len(wanted))
        deliver(delivery, wanted, size)
        told, _ = delivery.finish()
        assert content(storage, "d/a") == wanted
        assert told.token == storage.stat("d/a").token
        assert (delivery.sent_bytes, delivery.resumed_bytes) == (len(wanted), 0)
        assert names(storage, "d") == ["a"]
        assert list(storage.pending("")) == []

    def test_an_empty_file_can_be_delivered(self, storage: Storage) -> None:
        told, _ = storage.receive("a", 0).finish()
        assert told.bytes == 0
        assert content(storage, "a") == b""

    def test_pieces_may_come_in_any_order_and_from_one_buffer(self, storage: Storage) -> None:
        wanted, size = self.sized(storage)
        delivery = storage.receive("a", len(wanted))
        buffer = bytearray(size)
        for offset in (2 * size, 0, size):
            length = len(wanted[offset : offset + size])
            buffer[:length] = wanted[offset : offset + size]
            with memoryview(buffer) as view:
                delivery.write(offset, view[:length])
            buffer[:] = bytes(size)
        delivery.finish()
        assert content(storage, "a") == wanted

    def test_a_piece_handed_over_again_takes_the_place_of_the_first(self, storage: Storage) -> None:
        delivery = storage.receive("a", 5)
        delivery.write(0, memoryview(b"wrong"))
        delivery.write(0, memoryview(b"right"))
        delivery.finish()
        assert content(storage, "a") == b"right"
        assert delivery.sent_bytes == 10

    def test_nothing_is_visible_before_a_delivery_is_finished(self, storage: Storage) -> None:
        delivery = storage.receive("a", 5)
        delivery.write(0, memoryview(b"whole"))
        assert "a" not in names(storage)
        with pytest.raises(FileNotFoundError):
            storage.stat("a")
        delivery.discard()

    def test_a_taken_path_receives_nothing(self, storage: Storage) -> None:
        before = storage.publish("a", [b"first"])
        with pytest.raises(FileExistsError):
            storage.receive("a", 5)
        assert storage.stat("a").token == before.token
        assert names(storage) == ["a"]

    def test_a_path_taken_while_it_was_delivered_is_refused(self, storage: Storage) -> None:
        delivery = storage.receive("a", 6)
        delivery.write(0, memoryview(b"second"))
        storage.publish("a", [b"first"])
        with pytest.raises(FileExistsError):
            delivery.finish()
        delivery.discard()
        assert content(storage, "a") == b"first"
        assert names(storage) == ["a"]
        assert list(storage.pending("")) == []

    def test_a_delivery_with_a_gap_is_not_finished(self, storage: Storage) -> None:
        wanted, size = self.sized(storage)
        delivery = storage.receive("a", len(wanted))
        delivery.write(0, memoryview(wanted)[:size])
        delivery.write(2 * size, memoryview(wanted)[2 * size :])
        with pytest.raises(StorageError):
            delivery.finish()
        delivery.discard()
        with pytest.raises(FileNotFoundError):
            storage.stat("a")

    def test_bytes_beyond_the_told_size_are_refused(self, storage: Storage) -> None:
        delivery = storage.receive("a", 4)
        with pytest.raises(StorageError):
            delivery.write(0, memoryview(b"12345"))
        delivery.discard()

    def test_a_delivery_that_is_over_takes_nothing_more(self, storage: Storage) -> None:
        finished, discarded = storage.receive("a", 1), storage.receive("b", 1)
        finished.write(0, memoryview(b"x"))
        finished.finish()
        finished.discard()
        finished.abandon()
        discarded.discard()
        discarded.discard()
        for delivery in (finished, discarded):
            with pytest.raises(StorageError):
                delivery.write(0, memoryview(b"y"))
            with pytest.raises(StorageError):
                delivery.finish()
        assert content(storage, "a") == b"x"
        assert names(storage) == ["a"]

    def test_a_discarded_delivery_leaves_nothing(self, storage: Storage) -> None:
        wanted, size = self.sized(storage)
        delivery = storage.receive("a", len(wanted))
        delivery.write(0, memoryview(wanted)[:size])
        delivery.discard()
        assert names(storage) == []
        assert list(storage.pending("")) == []
        again = storage.receive("a", len(wanted))
        assert not again.stands(0, size)
        again.discard()

    def test_an_abandoned_delivery_is_taken_up_again(self, storage: Storage) -> None:
        wanted, size = self.sized(storage)
        first = storage.receive("d/a", len(wanted))
        deliver(first, wanted[: 2 * size], size)
        first.abandon()
        second = storage.receive("d/a", len(wanted))
        deliver(second, wanted, size)
        second.finish()
        assert (second.sent_bytes, second.resumed_bytes) == (len(wanted) - 2 * size, 2 * size)
        assert content(storage, "d/a") == wanted
        assert names(storage, "d") == ["a"]
        assert list(storage.pending("")) == []

    def test_other_bytes_that_stand_are_not_believed(self, storage: Storage) -> None:
        wanted, size = self.sized(storage)
        first = storage.receive("a", len(wanted))
        first.write(0, memoryview(wanted)[:size])
        first.write(size, memoryview(b"?" * size))
        first.abandon()
        second = storage.receive("a", len(wanted))
        deliver(second, wanted, size)
        second.finish()
        assert content(storage, "a") == wanted
        assert second.resumed_bytes == size

    def test_bytes_that_stand_count_only_once_they_were_compared(self, storage: Storage) -> None:
        wanted, size = self.sized(storage)
        first = storage.receive("a", len(wanted))
        deliver(first, wanted, size)
        first.abandon()
        second = storage.receive("a", len(wanted))
        assert second.stands(0, size)
        with pytest.raises(StorageError):
            second.finish()
        second.discard()
        assert "a" not in names(storage)

    def test_a_delivery_of_another_path_is_not_taken_up(self, storage: Storage) -> None:
        wanted, size = self.sized(storage)
        first = storage.receive("a", len(wanted))
        deliver(first, wanted, size)
        first.abandon()
        other = storage.receive("b", len(wanted))
        assert not other.stands(0, size)
        other.discard()

    def test_of_two_deliveries_at_once_one_wins_and_it_is_whole(self, storage: Storage) -> None:
        wanted, size = self.sized(storage)
        first, second = storage.receive("a", len(wanted)), storage.receive("a", len(wanted))
        deliver(first, wanted[: 2 * size], size)
        deliver(second, wanted, size)
        second.finish()
        deliver(first, wanted, size)
        with pytest.raises(FileExistsError):
            first.finish()
        assert content(storage, "a") == wanted
        assert names(storage) == ["a"]

    def test_what_was_begun_and_left_is_told_and_can_be_forgotten(self, storage: Storage) -> None:
        wanted, size = self.sized(storage)
        for path in ("d/e/a", "other/b"):
            delivery = storage.receive(path, len(wanted))
            deliver(delivery, wanted[: 2 * size], size)
            delivery.abandon()
        [pending] = storage.pending("d")
        assert pending.path.startswith("d/e/")
        assert not pending.is_held
        assert pending.started_at_ns > 0
        storage.forget(pending)
        storage.forget(pending)
        assert list(storage.pending("d")) == []
        [other] = storage.pending("")
        assert other.path.startswith("other/")
        again = storage.receive("d/e/a", len(wanted))
        assert not again.stands(0, size)
        again.discard()

    def test_only_what_was_begun_is_forgotten(self, storage: Storage) -> None:
        if not self.has_directories:
            pytest.skip("what is pending has no path of its own in this kind of storage")
        storage.publish("a", [b"x"])
        delivery = storage.receive("b", 1)
        delivery.write(0, memoryview(b"x"))
        [pending] = storage.pending("")
        with pytest.raises(StorageError):
            storage.forget(replace(pending, path="a", handle="a"))
        delivery.discard()
        assert content(storage, "a") == b"x"

    def test_attributes_travel_with_a_delivery(self, storage: Storage) -> None:
        given = Attributes(
            mode=0o104640, uid=os.geteuid(), gid=os.getegid(), mtime_ns=1_234_567_890_123_456_789
        )
        delivery = storage.receive("a", 1, attributes=given)
        delivery.write(0, memoryview(b"x"))
        delivery.finish()
        assert storage.attributes("a") == replace(given, mode=0o640)

    def test_a_directory_has_no_attributes_that_travel(self, storage: Storage) -> None:
        storage.publish("d/a", [b"x"])
        for path in ("", "d"):
            with pytest.raises(IsADirectoryError if self.has_directories else OSError):
                storage.attributes(path)

    @pytest.mark.usefixtures("of_symlinks")
    def test_a_link_is_never_delivered_to_nor_taken_for_its_file(self, storage: Storage) -> None:
        storage.publish("a", [b"x"])
        self.put_link(storage, "l", "a")
        self.put_link(storage, "dangling", "new")
        for path in ("l", "dangling"):
            with pytest.raises(FileExistsError):
                storage.receive(path, 1)
            with pytest.raises(PathEscapes):
                storage.attributes(path)
            with pytest.raises(PathEscapes):
                storage.link(path, "second")
        assert names(storage) == ["a", "dangling", "l"]
