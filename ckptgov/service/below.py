"""Places as callers may name them: a tier, and a path below its root. Never anything else.

No request names an absolute path, a URL or an endpoint: what the service reads and writes lies
where its own configuration says (P8).
"""

from __future__ import annotations

from ckptgov.errors import UsageError
from ckptgov.model.settings import TierSettings
from ckptgov.ops.context import Context
from ckptgov.work import addresses

_NEVER = frozenset(("", ".", ".."))
_MOST_BYTES = 4096


def check_below(path: str) -> str:
    """A plain path below a root.

    Raises:
        UsageError: absolute, a URL, with ``.``, ``..`` or empty parts, or no name a file can have.
    """
    parts = path.split("/")
    if not _NEVER.isdisjoint(parts) or "\0" in path or "://" in path or path.startswith("~"):
        raise UsageError(
            f"{path!r}: write a path below the tier's root, without '.' and '..'",
            hint="a tier and a path name a place; absolute paths and URLs do not",
        )
    try:
        too_long = len(path.encode()) > _MOST_BYTES
    except UnicodeEncodeError as error:
        raise UsageError("a path that is no text") from error
    if too_long:
        raise UsageError(f"a path of more than {_MOST_BYTES} bytes")
    if ".ckptgov" in parts:
        raise UsageError(f"{path!r}: lies in what belongs to ckptgov itself")
    return path


def tier_named(context: Context, name: str, *, node: str | None = None) -> TierSettings:
    """A configured tier that this process reaches by itself.

    Raises:
        UsageError: there is none of this name, or only its node's agent reaches it.
    """
    found = [one for one in context.settings.tiers if one.name == name and node in (None, one.node)]
    if not found:
        raise UsageError(f"no tier {name!r} is configured", hint="'ckptgov tier list' shows them")
    here = [
        one for one in found if one.node is None or context.here is None or one.node in context.here
    ]
    if not here:
        raise UsageError(
            f"tier {name!r} is a disk of another node",
            hint="the agent there scans and commits what lies on it",
        )
    if len(here) > 1:
        raise UsageError(f"tier {name!r} is there on several nodes, and none is named")
    return here[0]


def address_of(context: Context, tier: str, path: str) -> str:
    """The absolute path, or URL, of what lies at ``path`` below a tier's root.

    Raises:
        UsageError: as ``check_below`` and ``tier_named``.
    """
    return addresses.join(tier_named(context, tier).root, check_below(path))
