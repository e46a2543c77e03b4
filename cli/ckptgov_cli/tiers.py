"""``ckptgov tier …``: places, what may be taken from them, what flows between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ckptgov.errors import UsageError
from ckptgov_cli.options import EXIT_CODES, DryRun, Json, Node, opened_governor, opened_here, parsed

if TYPE_CHECKING:
    from ckptgov.model.pacing import Budget
    from ckptgov.model.settings import TierSettings

tier_app = typer.Typer(help="Places that hold checkpoints.")

_LIFTED = "none"
"""Written in the place of a limit, it takes that limit away."""

Read = Annotated[
    str | None, typer.Option("--read", metavar="RATE", help="Bytes read, such as 2GB/s.")
]
Write = Annotated[
    str | None, typer.Option("--write", metavar="RATE", help="Bytes written, such as 200MB/s.")
]
Requests = Annotated[
    str | None, typer.Option("--requests", metavar="N/s", help="Calls of the store, such as 500/s.")
]
Flows = Annotated[
    str | None, typer.Option("--flows", metavar="N", help="Flows moving at the same time.")
]


@tier_app.command("add", epilog=EXIT_CODES)
def tier_add(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What the tier is called, on every node alike.")
    ],
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="A directory, s3://bucket/prefix, or scheme://name/…"),
    ],
    scope: Annotated[
        str | None,
        typer.Option(
            "--scope",
            metavar="S",
            help="shared, or node for a node's own disk. Default: node with --node.",
        ),
    ] = None,
    node: Node = None,
    ingest: Annotated[
        bool, typer.Option("--ingest", help="'ckptgov scan' discovers and seals here.")
    ] = False,
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", metavar="URL", help="The S3 store's address, if not Amazon's."),
    ] = None,
    read: Read = None,
    write: Write = None,
    requests: Requests = None,
    flows: Flows = None,
    proof: Annotated[
        str | None,
        typer.Option(
            "--proof",
            metavar="P",
            help="How a flush proves what arrived: readback, arrival-checksum or none. "
            "Default: the strongest the tier was seen to give.",
        ),
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option("--quota", metavar="BYTES", help="What the tier may hold, such as 50TB."),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Register a root: writes its identity file and ckptgov.yaml.

    Credentials of a store come from where its library looks for them (for S3 the usual AWS
    chain), never from the URL.
    """
    from ckptgov.config.units import parse_bytes
    from ckptgov.config.urls import normal_endpoint
    from ckptgov.model.pacing import Budget
    from ckptgov.model.settings import Proof, Scope, TierSettings
    from ckptgov.work.locate import normal_path
    from ckptgov_cli import render_tiers

    if scope is None:
        scope = Scope.SHARED if node is None else Scope.NODE
    if scope not in tuple(Scope):
        raise UsageError(f"--scope {scope}: write shared or node")
    if (scope == Scope.NODE) != (node is not None):
        raise UsageError("--scope node goes with --node N, and only with it")
    if proof is not None and proof not in tuple(Proof):
        raise UsageError(f"--proof {proof}: write {', '.join(Proof)}")
    tier = TierSettings(
        name=name,
        root=normal_path(url),
        scope=Scope(scope),
        node=node,
        ingest=ingest,
        endpoint=parsed("--endpoint", endpoint, normal_endpoint, shown=False),
        budget=_change(read, write, requests, flows)(Budget()),
        proof=Proof(proof) if proof is not None else None,
        quota_bytes=parsed("--quota", quota, parse_bytes),
    )
    with opened_here("tier add") as governor:
        from ckptgov.ops.tiers import add_tier

        added = add_tier(governor.context, tier, dry_run=dry_run)
    return render_tiers.tiers([added], as_json=json, dry_run=dry_run)


@tier_app.command("list", epilog=EXIT_CODES)
def tier_list(json: Json = False) -> int:
    """List the configured tiers, with endpoint and budget."""
    from ckptgov_cli import render_tiers

    with opened_governor() as governor:
        tiers = governor.tiers()
    return render_tiers.tiers(tiers, as_json=json)


@tier_app.command("check", epilog=EXIT_CODES)
def tier_check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A configured tier.")],
    node: Node = None,
    via: Annotated[
        str | None,
        typer.Option(
            "--via",
            metavar="DIR",
            help="The same tier through a second mount: is create exclusive?",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Prove on the live tier what ckptgov relies on, and record what it was seen to do.

    Writes a few small files of its own below the root and removes them again.
    """
    from ckptgov_cli import render

    with opened_here("tier check") as governor:
        from ckptgov.ops.tiers import check_tier

        chosen = _chosen(governor.context.settings.tiers, name, node)
        if via is not None and len(chosen) > 1:
            raise UsageError("--via is one tier's second mount", hint="say which: --node N")
        checks = [one for tier in chosen for one in check_tier(governor.context, tier, via=via)]
    return render.checks(checks, as_json=json)


@tier_app.command("budget", epilog=EXIT_CODES)
def tier_budget(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A configured tier; default: all, or --node's."),
    ] = None,
    read: Read = None,
    write: Write = None,
    requests: Requests = None,
    flows: Flows = None,
    node: Annotated[
        str | None,
        typer.Option(
            "--node", metavar="N", help="With NAME: the tier on this node. Alone: the node's own."
        ),
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Take every limit away that is not given here.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Show or change what may be taken from a tier, or by a node over all tiers.

    Without a limit to change, shows them. 'none' in the place of a limit takes that one away; the
    others stay. Comments and order of ckptgov.yaml are kept.
    """
    from ckptgov_cli import render_tiers

    change = _change(read, write, requests, flows, clear=clear)
    is_change = clear or (read, write, requests, flows) != (None, None, None, None)
    if is_change and name is None and node is None:
        raise UsageError("tier budget: say whose: NAME, or --node N")
    with opened_governor() as governor:
        found = governor.budgets()
        if name is not None:
            _chosen(found[0], name, node)
        if is_change:
            found = governor.change_budget(name, node, change, dry_run=dry_run)
    return render_tiers.budgets(
        *found, tier=name, node=node, as_json=json, dry_run=dry_run and is_change
    )


@tier_app.command("link", epilog=EXIT_CODES)
def tier_link(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The tier that has it first.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The tier it is flushed to.")],
    every: Annotated[
        str | None,
        typer.Option(
            "--every", metavar="N|TIME", help="Each N-th checkpoint, or one in each 30m, 1h, 1d."
        ),
    ] = None,
    every_steps: Annotated[
        int | None,
        typer.Option("--every-steps", metavar="N", min=1, help="The first at or above each N."),
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, help="The newest N.")
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option("--pin", metavar="NAME", help="Those pinned under a name; may be repeated."),
    ] = None,
    hold: Annotated[
        bool,
        typer.Option(
            "--hold", help="Keep what is chosen by hard links until it arrived, whatever rotates."
        ),
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Say what flows from one tier to another; 'ckptgov flush' follows it.

    At least one rule chooses. What any of them chooses is flushed.
    """
    from ckptgov.model.settings import Link
    from ckptgov_cli import render_tiers

    if every is None and every_steps is None and last is None and not pin:
        raise UsageError("tier link: say what: --every, --every-steps, --last or --pin")
    is_count = every is not None and every.isascii() and every.isdigit()
    link = Link(
        source=source,
        target=target,
        every=int(every) if every is not None and is_count else None,
        every_s=None if is_count else parsed("--every", every, _duration_s),
        every_steps=every_steps,
        last=last,
        pins=tuple(pin or ()),
        hold=hold,
    )
    with opened_here("tier link") as governor:
        from ckptgov.ops.budgets import link_tiers

        added = link_tiers(governor.context, link, dry_run=dry_run)
    return render_tiers.links([added], as_json=json, dry_run=dry_run)


def _duration_s(text: str) -> float:
    from ckptgov.config.units import parse_duration

    return float(parse_duration(text))


def _chosen(tiers: Sequence[TierSettings], name: str, node: str | None) -> tuple[TierSettings, ...]:
    chosen = tuple(one for one in tiers if one.name == name and node in (None, one.node))
    if not chosen:
        where = f" on node {node}" if node is not None else ""
        raise UsageError(f"there is no tier {name!r}{where}", hint="see 'ckptgov tier list'")
    return chosen


def _change(
    read: str | None,
    write: str | None,
    requests: str | None,
    flows: str | None,
    *,
    clear: bool = False,
) -> Callable[[Budget], Budget]:
    """The change that the options ask for."""
    from msgspec.structs import replace

    from ckptgov.config.units import parse_rate, parse_requests
    from ckptgov.model.pacing import Budget

    limits: dict[str, int | None] = {}
    for member, option, text, parse in (
        ("read_bytes_per_s", "--read", read, parse_rate),
        ("write_bytes_per_s", "--write", write, parse_rate),
        ("requests_per_s", "--requests", requests, parse_requests),
        ("flows", "--flows", flows, _count),
    ):
        if text is not None:
            limits[member] = None if text == _LIFTED else parsed(option, text, parse)
    return lambda old: replace(Budget() if clear else old, **limits)


def _count(text: str) -> int:
    from ckptgov.config.moving import MAX_FLOWS

    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MAX_FLOWS:
        raise UsageError(f"is no number from 1 to {MAX_FLOWS}")
    return int(text)
