"""Side by side with peers: ``python tests/bench/run.py [ROW...]`` prints ratios and their budgets.

Every ratio compares two things measured in the same run, taking turns; what is printed is the
median of the turns' ratios with the least and the greatest. Budgets are told, never asserted: the
exit code is 0 either way. Run it on a quiet machine; nothing needs root.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import digesting
import moving
import object_store
import planning
import removing
import sealing
import serving
import starting
import verifying
from rounds import Plan
from table import Line, header, render

ROWS: dict[str, Callable[[Plan], Iterator[Line]]] = {
    "digest": digesting.lines,
    "start": starting.lines,
    "seal": sealing.lines,
    "verify": verifying.lines,
    "flush": moving.lines,
    "s3": object_store.lines,
    "plan": planning.lines,
    "remove": removing.lines,
    "serve": serving.lines,
}


def parser() -> argparse.ArgumentParser:
    """The options of the bench."""
    parse = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parse.add_argument("rows", nargs="*", metavar="ROW", help=f"of: {', '.join(ROWS)} (all)")
    parse.add_argument(
        "--rounds",
        type=int,
        default=7,
        metavar="N",
        help="turns a row (7); half as many where every turn writes a checkpoint",
    )
    parse.add_argument(
        "--scale",
        type=int,
        default=1,
        metavar="N",
        help="divide sizes and counts by N: quick, and too small to judge by",
    )
    parse.add_argument("--dir", metavar="DIR", help="where to write up to 4 GiB (the temp dir)")
    return parse


def main(argv: list[str]) -> int:
    """Measure the rows and print the table."""
    options = parser().parse_args(argv)
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown or options.rounds < 1 or options.scale < 1:
        parser().error(f"no such row: {unknown[0]}" if unknown else "N is at least 1")
    home = Path(tempfile.mkdtemp(prefix="ckptgov-bench-", dir=options.dir))
    try:
        plan = Plan(home=home, rounds=options.rounds, scale=options.scale)
        print(header(), flush=True)
        for row in options.rows or ROWS:
            for line in ROWS[row](plan):
                print(render(line), flush=True)
    finally:
        shutil.rmtree(home)
    if options.scale > 1:
        print(f"sizes divided by {options.scale}: a try-out, not a measurement")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
