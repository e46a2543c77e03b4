"""What goes into the catalog and comes out about moving bytes: frozen values, no SQL.

Apart from ``facts``, which a launcher's question loads.
"""

from __future__ import annotations

from msgspec import Struct

from ckptgov.model.pacing import FlowRequest

Rates = tuple[int | None, ...]
"""Limits of a flow, always in one order; None is without limit. What they limit is not known
here: they are only ever compared member by member."""


class FlowOwner(Struct, frozen=True, kw_only=True):
    """The process a flow or a lease belongs to, so that its end can be told from its silence.

    ``boot`` names the start of the machine and the set of processes that ``pid`` counts in;
    ``started`` is when the process began, as the kernel counts.
    """

    host: str
    boot: str
    pid: int
    started: int


class RegisteredFlow(Struct, frozen=True, kw_only=True):
    """One flow with everything known of it.

    ``granted`` is None while it waits. ``held`` is the most it may be using: what it was granted
    when it was last heard and everything granted since; None when it may move nothing.
    ``lease_ns`` is for how long it goes on with what it heard. ``beats`` grows each time it is
    heard.
    """

    request: FlowRequest
    owner: FlowOwner
    opened_at_ns: int
    lease_ns: int
    grant_seq: int = 0
    granted_at_ns: int = 0
    granted: Rates | None = None
    held: Rates | None = None
    fallback: Rates | None = None
    waits_for: str = ""
    beats: int = 0
    beat_at_ns: int = 0
    moved_bytes: int = 0
    measured_bytes_per_s: int = 0
    wanted: Rates | None = None
    read_push_backs: int = 0
    write_push_backs: int = 0


class Beat(Struct, frozen=True, kw_only=True):
    """What a flow tells each time. Bytes and push-backs are counted from its beginning.

    ``acts_on``: the number of the grant it uses, where it may not have heard of its newest: then
    it is told that one, and does not count as heard until it acts on it.
    """

    flow_id: str
    owner: FlowOwner
    moved_bytes: int
    measured_bytes_per_s: int
    wanted: Rates | None = None
    read_push_backs: int = 0
    write_push_backs: int = 0
    acts_on: int | None = None


class Grant(Struct, frozen=True, kw_only=True):
    """What a flow hears: it may move at ``rates``, or waits (None) for what the words say."""

    seq: int
    rates: Rates | None
    fallback: Rates | None
    waits_for: str = ""


class GrantChange(Struct, frozen=True, kw_only=True):
    """What the allocator decided for one flow.

    ``reclaim_at_beat``: the flow was not heard for so long that it uses no more than these rates;
    if it still was not heard since that beat, nothing more is counted for it.
    """

    flow_id: str
    rates: Rates | None
    fallback: Rates | None
    waits_for: str = ""
    reclaim_at_beat: int | None = None


class Allocator(Struct, frozen=True, kw_only=True):
    """Who computes the grants, until when, and under which epoch its changes are accepted."""

    holder: str
    epoch: int
    expires_at_ns: int


class CopyLease(Struct, frozen=True, kw_only=True):
    """Who brings a checkpoint to a place. Released or expired, its epoch stays."""

    content_id: str
    place: str
    holder: str
    epoch: int
    expires_at_ns: int
