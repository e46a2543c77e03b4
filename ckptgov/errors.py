"""Every exception raised on purpose, each with its exit code.

::

    CkptgovError                           1  something we did not foresee
    ├── UsageError                         2  the call is wrong: bad argument, name taken
    │   └── ConfigError                    2  a configuration file is wrong; names file and line
    ├── PartlyDone                         3  some items failed, the others are done
    ├── NeverAny                           4  a complete look found no checkpoint at all
    ├── NoneRestorable                     5  checkpoints exist, none may be offered
    │   └── VerificationFailed             5  bytes differ from the manifest
    ├── RefusedBySafety                    6  a safety rule forbids it
    ├── LeaseLost                          7  someone else holds the lease or changed the state
    │   └── StaleState                     7  compare-and-set found another state
    ├── NotAllowed                         8  the caller may not do this
    ├── CouldNotLook                       9  storage did not answer: never read as "none"
    │   ├── RunRootGone                    9  a run's directory is away, or holds no record of it
    │   ├── StorageError                   9  the tier refused or failed
    │   │   ├── TransientStorageError      9  the same call may succeed later
    │   │   │   └── SlowDown               9  the store asks for less (503, 429)
    │   │   └── PathEscapes                9  a path leaves its root, or a symlink stands in it
    │   ├── ForeignPlace                   9  identity file missing or of another place
    │   ├── UnknownRun                     9  no such run is registered
    │   └── Malformed                      9  a file of ours does not decode; names file and member
    ├── OverCapacity                      10
    ├── TimedOut                          11
    ├── Ambiguous                         12  several runs where one was asked for
    └── Interrupted                      143  told to stop; what has arrived stays for the next try

Where a built-in means exactly the condition it is raised instead: ``FileExistsError`` for a taken
key, ``FileNotFoundError`` for an absent one. ``hint`` says what the operator can do; it is never
the reason. Only the command line (later: the HTTP handler and the scheduler loop) catches these.
"""

from __future__ import annotations

from typing import ClassVar


class CkptgovError(Exception):
    """Base of all errors raised on purpose."""

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(CkptgovError):
    """The call is wrong; nothing was done."""

    exit_code = 2
    kind = "usage"


class ConfigError(UsageError):
    """A configuration file is wrong; the message names file and line."""

    kind = "config"


class PartlyDone(CkptgovError):
    """Some items failed and are named; the others are done."""

    exit_code = 3
    kind = "partly-done"


class NeverAny(CkptgovError):
    """A complete look found no checkpoint and no record that there ever was one."""

    exit_code = 4
    kind = "never-any"


class NoneRestorable(CkptgovError):
    """Checkpoints exist, and none may be offered for what was asked."""

    exit_code = 5
    kind = "none-restorable"


class VerificationFailed(NoneRestorable):
    """Bytes, sizes or structure differ from what the manifest or the layout demands."""

    kind = "verification-failed"


class RefusedBySafety(CkptgovError):
    """A safety rule forbids the operation."""

    exit_code = 6
    kind = "refused"


class LeaseLost(CkptgovError):
    """Another process holds the lease, or took it over."""

    exit_code = 7
    kind = "lease-lost"


class StaleState(LeaseLost):
    """A compare-and-set found another state than the one expected."""

    kind = "stale-state"


class NotAllowed(CkptgovError):
    """The caller may not do this."""

    exit_code = 8
    kind = "not-allowed"


class CouldNotLook(CkptgovError):
    """Storage did not give a complete answer. Never to be read as "there is none"."""

    exit_code = 9
    kind = "could-not-look"


class RunRootGone(CouldNotLook):
    """The run root is not there, or not any more; whether for good, nobody can tell from that."""

    kind = "run-root-gone"


class StorageError(CouldNotLook):
    """The tier refused or failed."""

    kind = "storage"


class TransientStorageError(StorageError):
    """The tier failed in a way that may pass; the same call may succeed later."""

    kind = "storage-transient"


class SlowDown(TransientStorageError):
    """The store asks for fewer requests or bytes; nothing is wrong with what was sent."""

    kind = "slow-down"


class PathEscapes(StorageError):
    """A path leaves its root, or a symlink stands where none may."""

    kind = "path-escapes"


class ForeignPlace(CouldNotLook):
    """The root's identity file is missing or names another place (unmounted, swapped)."""

    kind = "foreign-place"


class UnknownRun(CouldNotLook):
    """No run of this name is registered; says nothing about its checkpoints."""

    kind = "unknown-run"


class Malformed(CouldNotLook):
    """A file of ours does not decode. The message names file and member."""

    kind = "malformed"


class OverCapacity(CkptgovError):
    """The tier has no room for it."""

    exit_code = 10
    kind = "over-capacity"


class TimedOut(CkptgovError):
    """A bounded wait ended without the thing waited for."""

    exit_code = 11
    kind = "timed-out"


class Ambiguous(CkptgovError):
    """Several runs lie where one was asked for; the message names them."""

    exit_code = 12
    kind = "ambiguous"


class Interrupted(CkptgovError):
    """A signal asked to stop. Nothing half is visible; the same command goes on from there."""

    exit_code = 143
    kind = "interrupted"
