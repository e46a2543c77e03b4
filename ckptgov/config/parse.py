"""The schema of ``ckptgov.yaml``."""

from __future__ import annotations

import os.path
import re

from ckptgov.config.document import TIER_NAME, Item, compose, shown
from ckptgov.config.moving import budget_of, links_of
from ckptgov.config.roots import endpoint_of, root_of
from ckptgov.config.serving import catalog_of, service_of
from ckptgov.config.units import parse_bytes
from ckptgov.config.urls import stands_in
from ckptgov.model.checkpoint import Expect
from ckptgov.model.pacing import Budget
from ckptgov.model.settings import NodeSettings, Proof, RunRule, Scope, Settings, TierSettings

_DAY_S = 86400
_TIER_KEYS = (
    *("name", "url", "scope", "node", "ingest"),
    *("endpoint", "budget", "proof", "quota"),
)
_NODE_KEYS = ("name", "budget")
_RULE_KEYS = ("run", "expect", "tags")
_EXPECT_KEYS = ("glob", "count", "marker", "step")
_SETTINGS_KEYS = (
    "tiers",
    "runs",
    "links",
    "nodes",
    "fallback",
    "stall",
    "verify_max_age",
    "clock_margin",
    "save_window",
    "settle",
    "digest_threads",
    "step_over_limit",
    "catalog",
    "policies",
    "service",
)
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
MAX_SHARDS = 1_000_000  # forms, version 1: cap of a manifest


def parse_settings(text: str, *, home: str, path: str) -> Settings:
    """Settings out of the file's text; ``path`` is only for messages.

    Raises:
        ConfigError: anything wrong, with file and line.
    """
    root = compose(text, path)
    if root is None:
        return Settings(home=home)
    entries = root.table(_SETTINGS_KEYS)
    default = Settings(home=home)
    tiers = _tiers(_items(entries, "tiers"))
    fallback = entries.get("fallback")
    return Settings(
        home=home,
        tiers=tiers,
        rules=_rules(_items(entries, "runs")),
        links=links_of(_items(entries, "links"), tiers),
        nodes=_nodes(_items(entries, "nodes")),
        fallback_percent=default.fallback_percent if fallback is None else fallback.percent(1, 90),
        stall_s=_duration(entries, "stall", default.stall_s, lowest_s=1),
        verify_max_age_s=_duration(entries, "verify_max_age", default.verify_max_age_s, lowest_s=1),
        clock_margin_s=_duration(entries, "clock_margin", default.clock_margin_s),
        save_window_s=_duration(entries, "save_window", default.save_window_s),
        settle_s=_duration(entries, "settle", default.settle_s),
        digest_threads=_whole(entries, "digest_threads", default.digest_threads, 1, 1024),
        step_over_limit=_whole(entries, "step_over_limit", default.step_over_limit, 0, 1000),
        catalog_url=catalog_of(entries["catalog"]) if "catalog" in entries else None,
        policies_dir=_directory(entries["policies"]) if "policies" in entries else None,
        service=service_of(entries["service"], tiers) if "service" in entries else default.service,
    )


def _items(entries: dict[str, Item], name: str) -> tuple[Item, ...]:
    return entries[name].items() if name in entries else ()


def _duration(entries: dict[str, Item], name: str, default: float, *, lowest_s: int = 0) -> float:
    item = entries.get(name)
    return default if item is None else item.duration_s(lowest_s, 3650 * _DAY_S)


def _whole(entries: dict[str, Item], name: str, default: int, lowest: int, highest: int) -> int:
    item = entries.get(name)
    return default if item is None else item.whole(lowest, highest)


def _tiers(items: tuple[Item, ...]) -> tuple[TierSettings, ...]:
    tiers: list[TierSettings] = []
    for item in items:
        tier = _tier(item)
        for other in tiers:
            _check_pair(item, tier, other)
        tiers.append(tier)
    return tuple(tiers)


def _tier(item: Item) -> TierSettings:
    entries = item.table(_TIER_KEYS, required=("name", "url"))
    scope = Scope.SHARED
    if "scope" in entries:
        scope = Scope(entries["scope"].one_of([each.value for each in Scope]))
    node = _matching(entries["node"], _NODE) if "node" in entries else None
    if scope is Scope.NODE and node is None:
        raise item.wrong('"scope: node" needs "node": the name of the node whose disk it is')
    if scope is Scope.SHARED and node is not None:
        raise entries["node"].wrong('"node" goes only with "scope: node"')
    root = root_of(entries["url"])
    if "://" in root and scope is Scope.NODE:
        raise item.wrong(
            '"scope: node" goes only with a path: a URL leads every node to the same place'
        )
    return TierSettings(
        name=_matching(entries["name"], TIER_NAME),
        root=root,
        scope=scope,
        node=node,
        ingest=entries["ingest"].flag() if "ingest" in entries else False,
        endpoint=_endpoint(entries, root),
        budget=budget_of(entries["budget"]) if "budget" in entries else Budget(),
        proof=_proof(entries, root),
        quota_bytes=entries["quota"].amount(parse_bytes) if "quota" in entries else None,
    )


def _endpoint(entries: dict[str, Item], root: str) -> str | None:
    item = entries.get("endpoint")
    if item is None:
        return None
    if not root.startswith("s3://"):
        raise item.wrong('"endpoint" goes only with an s3:// URL')
    return endpoint_of(item)


def _proof(entries: dict[str, Item], root: str) -> Proof | None:
    item = entries.get("proof")
    if item is None:
        return None
    proof = Proof(item.one_of([each.value for each in Proof]))
    if proof is Proof.ARRIVAL_CHECKSUM and "://" not in root:
        raise item.wrong(
            '"proof: arrival-checksum" needs a store that checks what arrives, not a file system',
            hint="proof: readback",
        )
    return proof


def _nodes(items: tuple[Item, ...]) -> tuple[NodeSettings, ...]:
    nodes: dict[str, NodeSettings] = {}
    for item in items:
        entries = item.table(_NODE_KEYS, required=_NODE_KEYS)
        name = _matching(entries["name"], _NODE)
        if name in nodes:
            raise item.wrong(f'node "{name}" is declared twice')
        nodes[name] = NodeSettings(name=name, budget=budget_of(entries["budget"]))
    return tuple(nodes.values())


def _check_pair(item: Item, tier: TierSettings, other: TierSettings) -> None:
    """Two tiers may share a name or a root only where no single node sees both."""
    if tier.name == other.name and tier.scope is not other.scope:
        raise item.wrong(f'tier "{tier.name}" is declared both shared and for a node')
    if tier.node is not None and other.node is not None and tier.node != other.node:
        return
    if tier.name == other.name:
        where = f' for node "{tier.node}"' if tier.node else ""
        raise item.wrong(f'tier "{tier.name}" is declared twice{where}')
    if tier.endpoint != other.endpoint:
        return  # buckets of two stores may be called alike
    if stands_in(tier.root, other.root) or stands_in(other.root, tier.root):
        raise item.wrong(
            f'the root of tier "{tier.name}" ({tier.root}) is the same as, inside or around that '
            f'of "{other.name}" ({other.root})',
            hint="a file belongs to one tier: give each a root of its own",
        )


def _rules(items: tuple[Item, ...]) -> tuple[RunRule, ...]:
    rules: dict[str, RunRule] = {}
    for item in items:
        entries = item.table(_RULE_KEYS, required=("run",))
        if len(entries) == 1:
            raise item.wrong('"expect" is missing, and so is "tags": nothing is said of these runs')
        run = entries["run"].text()
        if run in rules:
            raise item.wrong(f'there are two rules for "{run}"; the second would never apply')
        rules[run] = RunRule(
            run=run,
            expect=_expect(entries["expect"]) if "expect" in entries else None,
            tags=_tags(entries["tags"]) if "tags" in entries else (),
        )
    return tuple(rules.values())


def _tags(item: Item) -> tuple[str, ...]:
    tags: list[str] = []
    for member in item.items():
        tag = member.text()
        if not TAG.fullmatch(tag):
            raise member.wrong(f'{shown(tag)} is no tag: letters, digits, ".", "_" and "-"')
        if tag in tags:
            raise member.wrong(f'"{tag}" is named twice')
        tags.append(tag)
    if not tags:
        raise item.wrong('"tags" names none')
    return tuple(tags)


def _directory(item: Item) -> str:
    path = item.text()
    if not path.startswith("/") or ".." in path.split("/"):
        raise item.wrong(
            f'"policies" is {shown(path)}, no absolute path without ".."',
            hint="the directory whose *.yaml files are the policies",
        )
    return os.path.normpath(path)


def _expect(item: Item) -> Expect:
    entries = item.table(_EXPECT_KEYS, required=("glob",))
    if "count" not in entries and "marker" not in entries:
        raise item.wrong(
            'a rule needs "count" or "marker": a glob alone cannot tell a half-written checkpoint'
        )
    return Expect(
        glob=_glob(entries["glob"]),
        count=entries["count"].whole(1, MAX_SHARDS) if "count" in entries else None,
        marker=_marker(entries["marker"]) if "marker" in entries else None,
        step=_step_pattern(entries["step"]) if "step" in entries else None,
    )


def _glob(item: Item) -> str:
    glob = item.text()
    parts = glob.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise item.wrong('"glob" must be a path below the run root, without "", "." or ".." parts')
    return glob


def _marker(item: Item) -> str:
    marker = item.text()
    if "/" in marker or marker in {".", ".."}:
        raise item.wrong('"marker" must be a file name, not a path')
    return marker


def _step_pattern(item: Item) -> str:
    pattern = item.text()
    try:
        groups = re.compile(pattern).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise item.wrong(f'"step" is not a regular expression: {error}') from error
    if not groups:
        raise item.wrong('"step" needs a group around the number, such as step_(\\d+)')
    return pattern


def _matching(item: Item, pattern: re.Pattern[str]) -> str:
    text = item.text()
    if not pattern.fullmatch(text):
        raise item.wrong(
            f'"{item.name}" may hold letters, digits, ".", "_" and "-" only, '
            "and begins with a letter or digit"
        )
    return text
