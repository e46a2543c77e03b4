"""A URL leads to its place and run roots, with no catalog and no configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptgov.errors import Ambiguous, CouldNotLook, StorageError, UsageError
from ckptgov.model.settings import TierSettings
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.builders import write_dcp
from ckptgov.work import locate as room
from ckptgov.work.locate import endpoint_of, locate, normal_path
from ckptgov.work.tier import mint_identity


class Store:
    """Buckets that are directories, and a record of what was asked for."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.opened: list[tuple[str, str | None]] = []
        self.looks: list[str] = []

    def open(self, root: str, *, endpoint: str | None = None, stall_s: float = 0.0) -> PosixStorage:
        self.opened.append((root, endpoint))
        looks = self.looks

        class Watched(PosixStorage):
            def stat(self, path: str):  # type: ignore[no-untyped-def]
                looks.append(path)
                return super().stat(path)

        return Watched(str(self.base / root.removeprefix("s3://")))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store(tmp_path)
    monkeypatch.setattr(room, "open_storage", store.open)
    return store


def register(tmp_path: Path, path: str) -> str:
    """Give a root its identity; returns the place."""
    storage = PosixStorage(str(tmp_path / path))
    ids = iter(["8a52c4a1-6c41-4cd3-93a2-7b6f2f1d0001"])
    identity = mint_identity(
        storage,
        tier="s3",
        catalog="8a52c4a1-6c41-4cd3-93a2-7b6f2f1d0002",
        epoch=1,
        new_id=lambda: next(ids),
    )
    storage.close()
    return identity.place


def test_the_nearest_identity_above_names_the_place(tmp_path, store) -> None:
    write_dcp(tmp_path / "bucket/prefix/team/run/step_1")
    place = register(tmp_path, "bucket/prefix")
    found = locate("s3://bucket/prefix/team/run", endpoint="http://store")
    assert (found.place.root, found.place.uuid) == ("s3://bucket/prefix", place)
    assert found.one_run_root() == "team/run"
    assert {endpoint for _, endpoint in store.opened} == {"http://store"}


def test_each_level_is_looked_at_once(tmp_path, store) -> None:
    write_dcp(tmp_path / "bucket/a/b/run/step_1")
    register(tmp_path, "bucket/a")
    locate("s3://bucket/a/b/run")
    asked = [path for path in store.looks if path.endswith(".ckptgov-tier.json")]
    assert asked == [
        "a/b/run/.ckptgov-tier.json",
        "a/b/.ckptgov-tier.json",
        "a/.ckptgov-tier.json",
    ]


def test_an_unregistered_url_stands_for_itself(tmp_path, store) -> None:
    write_dcp(tmp_path / "bucket/run/step_1")
    found = locate("s3://bucket/run")
    assert (found.place.root, found.place.uuid, found.run_roots) == ("s3://bucket/run", None, ("",))


def test_a_url_of_one_checkpoint_stands_for_its_run(tmp_path, store) -> None:
    write_dcp(tmp_path / "bucket/run/step_1")
    found = locate("s3://bucket/run/step_1")
    assert (found.place.root, found.only_name) == ("s3://bucket/run", "step_1")
    register(tmp_path, "bucket")
    found = locate("s3://bucket/run/step_1")
    assert (found.place.root, found.run_roots, found.only_name) == (
        "s3://bucket",
        ("run",),
        "step_1",
    )


@pytest.mark.parametrize("url", ["s3://bucket/other", "s3://nowhere", "s3://bucket/run/x/y"])
def test_where_nothing_is_nobody_looked(tmp_path, store, url) -> None:
    write_dcp(tmp_path / "bucket/run/step_1")
    with pytest.raises(CouldNotLook, match="nothing is there"):
        locate(url)


def test_a_store_that_does_not_answer_is_not_an_empty_one(monkeypatch) -> None:
    def refuse(root: str, *, endpoint: str | None = None, stall_s: float) -> PosixStorage:
        raise StorageError(f"{root} {endpoint}: refused")

    monkeypatch.setattr(room, "open_storage", refuse)
    with pytest.raises(CouldNotLook, match="refused"):
        locate("s3://bucket/run")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("S3://bucket/run/", "s3://bucket/run"),
        ("s3://bucket/my%20run", "s3://bucket/my%20run"),
        ("memory://x/run/", "memory://x/run"),
        ("FILE:///a/b/", "/a/b"),
    ],
)
def test_a_url_is_told_as_configuration_spells_it(text, address) -> None:
    assert normal_path(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:secret@bucket/run",
        "s3://bucket/a/../b",
        "s3://bucket/%41",
        "s3://bucket/%2e%2e/a",
        "s3://bucket/a%2Fb",
        "https://store/bucket",
    ],
)
def test_an_impossible_url_is_refused(text) -> None:
    with pytest.raises(UsageError) as caught:
        normal_path(text)
    assert "secret" not in f"{caught.value.message}{caught.value.hint}"


def tier(name: str, root: str, endpoint: str | None) -> TierSettings:
    return TierSettings(name=name, root=root, endpoint=endpoint)


def test_a_configured_tier_tells_where_its_store_is() -> None:
    tiers = (tier("a", "s3://bucket/a", "http://one"), tier("p", "/bucket", None))
    assert endpoint_of("s3://bucket/a/run", tiers) == "http://one"
    assert endpoint_of("s3://bucket", tiers) == "http://one"
    assert endpoint_of("s3://bucket/b", tiers) is None
    assert endpoint_of("/bucket/a", tiers) is None


def test_a_bucket_of_two_stores_is_ambiguous() -> None:
    tiers = (tier("a", "s3://bucket/a", "http://one"), tier("b", "s3://bucket/a", None))
    with pytest.raises(Ambiguous, match="http://one"):
        endpoint_of("s3://bucket/a/run", tiers)


def test_a_path_loads_nothing_of_a_store(tmp_path) -> None:
    write_dcp(tmp_path / "run/step_1")
    script = (
        "import sys; from ckptgov.work.locate import locate, normal_path; "
        f"locate(normal_path({str(tmp_path / 'run')!r})); "
        "print([m for m in ('boto3', 'botocore', 'fsspec', 'ckptgov.config') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"
