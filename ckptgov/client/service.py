"""What is asked of a service about itself: tokens, nodes, tasks, events. Documents as they came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckptgov.client.transport import Transport, path_of
from ckptgov.errors import UsageError
from ckptgov.wire.members import Members

if TYPE_CHECKING:
    from ckptgov.wire.documents import Document

PAGE = 1000


class ServiceVerbs:
    """Dry runs ask what is there, and change nothing."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def tokens(self) -> Document:
        """Every token, without its text."""
        return self._transport.get(path_of("tokens"))

    def new_token(
        self,
        label: str,
        *,
        rights: Sequence[str],
        teams: Sequence[str],
        node: str | None,
        ttl_s: float | None,
        dry_run: bool = False,
    ) -> Document:
        """Make a token; its text is ``secret`` of the document, and nowhere else."""
        body = {
            "label": label,
            "rights": list(rights),
            "teams": list(teams),
            "node": node,
            "ttl_s": ttl_s,
        }
        if dry_run:
            self.tokens()  # who may not make one is told so
            return {"token": body, "secret": None}
        return self._transport.send("POST", path_of("tokens"), body)

    def revoke_token(self, token_id: str, *, dry_run: bool = False) -> Document:
        """From now on the token opens nothing."""
        if not dry_run:
            return self._transport.send("DELETE", path_of("tokens", token_id), is_repeatable=True)
        return {"token": _only(self.tokens(), "tokens", "token_id", token_id)}

    def nodes(self) -> Document:
        """Every node whose agent was ever heard of."""
        return self._transport.get(path_of("nodes"))

    def set_node(self, node: str, state: str, *, reason: str, dry_run: bool = False) -> Document:
        """Say what a node is."""
        if dry_run:
            told = _only(self.nodes(), "nodes", "node", node)
            return {"node": {**told, "state": state, "reason": reason}}
        body = {"state": state, "reason": reason}
        path = path_of("nodes", node, "state")
        return self._transport.send("PUT", path, body, is_repeatable=True)

    def tasks(
        self, *, run: str | None = None, node: str | None = None, state: str | None = None
    ) -> Document:
        """Tasks that are open or ended lately."""
        return self._transport.get(path_of("tasks"), {"run": run, "node": node, "state": state})

    def task(self, task_id: str) -> Document:
        """One task, with its outcome once it has ended."""
        return self._transport.get(path_of("tasks", task_id))

    def events(self, run: str | None, *, after: int) -> Iterator[Document]:
        """What happened behind ``after`` until now, a page at a time."""
        path = path_of("events") if run is None else path_of("runs", run, "events")
        while True:
            page = self._transport.get(path, {"after": after, "limit": PAGE})
            yield page
            following = Members(page).whole("next")
            if following <= after or len(list(Members(page).objects("events"))) < PAGE:
                return
            after = following

    def all_events(self, run: str | None, *, after: int) -> Document:
        """The same as one document."""
        events: list[object] = []
        for page in self.events(run, after=after):
            events += page["events"]
            after = page["next"]
        return {"events": events, "next": after}


def _only(document: Document, member: str, key: str, wanted: str) -> Document:
    """The one entry of a list; raises UsageError where it is not there."""
    for each in Members(document).objects(member):
        if each.text(key) == wanted:
            return each.whole_document()
    raise UsageError(f"there is no {key.removesuffix('_id')} {wanted!r}")
