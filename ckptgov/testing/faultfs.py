"""A FUSE pass-through that fails on demand: any errno, at any call, on any name, once or for ever.

``with faulty_mount(source, mountpoint, [Rule(op="fsync", errno="EIO")]) as faults`` shows
``source`` at ``mountpoint``; ``faults.inject([...])`` changes the rules while it runs. It is
``python -m ckptgov.testing.faultfs SOURCE MOUNTPOINT RULES`` in a process of its own, which reads
RULES, a JSON file, again whenever it was replaced. Needs ``mfusepy``, libfuse and FUSE.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ckptgov.testing._mounting import mounted, no_fuse, own_environment


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What goes wrong, and when.

    ``op``: the file system call (``create open read write fsync flush release truncate fallocate
    rename link unlink symlink mkdir rmdir fsyncdir readdir getattr chmod chown utimens statfs
    flock``), ``*`` for any; close(2) is ``flush``. ``match``: a glob on the path below the mount
    (``*`` matches ``/`` too); of rename and link, either name counts. ``after_bytes``: only reads
    and writes that reach beyond this offset. ``nth``: fires first at the n-th call that matches
    so far. ``times``: how often, -1 for ever.

    What happens: a wait of ``delay_ms``; then ``errno`` (its name), with ``done`` only after the
    call was carried out (the answer was lost). ``flip`` changes a bit of what is read or written,
    ``drop_entries`` leaves so many names out of the end of a listing.
    """

    op: str = "*"
    match: str = "*"
    errno: str | None = None
    after_bytes: int | None = None
    nth: int = 1
    times: int = 1
    delay_ms: float = 0
    done: bool = False
    flip: bool = False
    drop_entries: int = 0


class RuleFile(msgspec.Struct, frozen=True):
    """What stands in RULES. The counts of another generation belong to rules replaced since."""

    generation: int
    rules: tuple[Rule, ...]


class FiredFile(msgspec.Struct, frozen=True):
    """What stands beside RULES, in a file called like it and ``.fired``."""

    generation: int
    fired: tuple[int, ...]


class Faults:
    """The rules of a running mount. An operation that begins after a call here obeys it."""

    def __init__(self, rules_file: Path) -> None:
        self._file = rules_file
        self._generation = 0
        self._rules: tuple[Rule, ...] = ()

    def inject(self, rules: Sequence[Rule]) -> None:
        """Put these rules, all counts from zero, in the place of the ones before."""
        for rule in rules:
            if rule.errno is not None and not hasattr(errno, rule.errno):
                raise ValueError(f"{rule.errno} is no errno")
        self._generation += 1
        self._rules = tuple(rules)
        write_whole(self._file, msgspec.json.encode(RuleFile(self._generation, self._rules)))

    def clear(self) -> None:
        """Nothing fails any more."""
        self.inject(())

    @property
    def fired(self) -> tuple[int, ...]:
        """How often each rule fired so far, in their order."""
        with contextlib.suppress(FileNotFoundError):
            told = msgspec.json.decode(fired_file(self._file).read_bytes(), type=FiredFile)
            if told.generation == self._generation:
                return told.fired
        return (0,) * len(self._rules)


def reason_to_skip() -> str | None:
    """Why the fixture cannot run here; None where it can."""
    if importlib.util.find_spec("mfusepy") is None:
        return "mfusepy is not installed"
    try:
        importlib.import_module("mfusepy")
    except OSError as error:
        return f"mfusepy finds no libfuse: {error}"
    return no_fuse()


@contextlib.contextmanager
def faulty_mount(source: Path, mountpoint: Path, rules: Sequence[Rule] = ()) -> Iterator[Faults]:
    """Show the directory ``source`` at ``mountpoint`` (made if missing) with faults.

    Nothing is cached by the kernel, so every call reaches the rules. Inodes, times, modes and
    owners are those of the source.

    Raises:
        FixtureFailed: it was not mounted.
    """
    with tempfile.TemporaryDirectory(prefix="faultfs-") as own:
        file = Path(own) / "rules.json"
        faults = Faults(file)
        faults.inject(rules)
        command = [sys.executable, "-m", "ckptgov.testing.faultfs", "--until-eof"]
        command += [str(source), str(mountpoint), str(file)]
        environment = own_environment(Path(own)) | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with mounted(command, mountpoint, Path(own) / "log", environment):
            yield faults


def fired_file(rules_file: Path) -> Path:
    """Where the counts stand."""
    return rules_file.with_name(rules_file.name + ".fired")


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file so that a reader sees the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(content)
    fresh.replace(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Mount and serve until unmounted or terminated."""
    parser = argparse.ArgumentParser(prog="faultfs", description="FUSE pass-through with faults")
    parser.add_argument("source", type=Path)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("rules", type=Path)
    parser.add_argument("--until-eof", action="store_true", help="end when stdin ends")
    told = parser.parse_args(arguments)
    from ckptgov.testing._passthrough import serve

    serve(told.source.resolve(), told.mountpoint, told.rules, until_eof=told.until_eof)


if __name__ == "__main__":
    main()
