"""The exit codes: as every help prints them, and which one an answer has."""

from __future__ import annotations

from ckptgov.errors import CkptgovError

EXIT_CODES = """\
Exit codes:
  0 done                                   8 not allowed
  1 unexpected                             9 could not look (missing, unmounted, unreadable)
  2 wrong usage or configuration          10 over capacity
  3 partly done                           11 timed out
  4 there never was a checkpoint          12 ambiguous (several runs)
  5 none restorable, or verification      20 changes pending (--detailed-exitcode only)
    failed                              130 interrupted
  6 refused by a safety rule            143 terminated; what has arrived is kept
  7 lease or lock lost
"""


def code_of(error: CkptgovError | None) -> int:
    """The exit code of an answer with this error; 0 without one."""
    return 0 if error is None else error.exit_code
