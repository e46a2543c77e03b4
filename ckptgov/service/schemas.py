"""The forms of answers, as JSON Schema: what every one of them has at least.

Members are only ever added: whoever reads an answer ignores those it does not know.
"""

from __future__ import annotations

from typing import Any

from ckptgov.model.access import Right
from ckptgov.model.cluster import NodeState, TaskKind, TaskState
from ckptgov.model.retention import PlanState

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
PATHS: Schema = {"type": "array", "items": TEXT}


def maybe(one: Schema) -> Schema:
    """Or null."""
    return {"anyOf": [one, {"type": "null"}]}


def many(one: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": one}


def has(**members: Schema) -> Schema:
    """An object with at least these members."""
    return {"type": "object", "required": sorted(members), "properties": members}


NOTE = has(kind=TEXT, path=TEXT, text=TEXT)
FINDING = has(reason=TEXT, path=TEXT, evidence=TEXT)
PASSED_OVER = has(name=TEXT, step=maybe(WHOLE), variant=TEXT, findings=many(FINDING))
COPY = has(place=maybe(TEXT), tier=maybe(TEXT), node=maybe(TEXT), root=TEXT, shards=maybe(PATHS))
CHECKPOINT = has(
    name=TEXT,
    step=maybe(WHOLE),
    step_kind=TEXT,
    layout=TEXT,
    content_id=maybe(TEXT),
    evidence=TEXT,
    bytes=WHOLE,
    line=WHOLE,
    copies=many(COPY),
)
LATEST = {
    "allOf": [
        CHECKPOINT,
        has(
            run=maybe(TEXT),
            path=TEXT,
            resume_args=has(path=TEXT, parent=TEXT, step=maybe(WHOLE), tag=TEXT),
            passed_over=many(PASSED_OVER),
            notes=many(NOTE),
        ),
    ]
}
RESTART = has(restart=has(restart_id=TEXT, epoch=WHOLE, decided_here=FLAG))
ERROR = has(
    error=has(kind=TEXT, exit_code=WHOLE, message=TEXT, hint=maybe(TEXT)),
    passed_over=many(PASSED_OVER),
    notes=many(NOTE),
)
RUN = has(run=TEXT, run_id=maybe(TEXT), roots=PATHS, checkpoints=WHOLE, bytes=WHOLE)
RUNS = has(dry_run=FLAG, runs=many(RUN))
LISTING = has(
    run=maybe(TEXT),
    run_id=maybe(TEXT),
    root=TEXT,
    line=WHOLE,
    checkpoints=many({"allOf": [CHECKPOINT, has(state=TEXT, findings=many(FINDING))]}),
    notes=many(NOTE),
)
MANIFEST = has(format=TEXT, version=WHOLE, content_id=TEXT, shards=many(OBJECT))
EVENTS = has(
    events=many(has(seq=WHOLE, at_ns=WHOLE, kind=TEXT, run=maybe(TEXT))),
    next=WHOLE,
)
RECORD = has(dry_run=FLAG, record=OBJECT)
SEALED = has(dry_run=FLAG, name=TEXT, step=maybe(WHOLE), content_id=TEXT, bytes=WHOLE)
TASK = has(
    task_id=TEXT,
    kind={"enum": [one.value for one in TaskKind]},
    run=maybe(TEXT),
    node=maybe(TEXT),
    state={"enum": [one.value for one in TaskState]},
    lease=WHOLE,
    attempts=WHOLE,
)
ONE_TASK = has(task=TASK)
TASKS = has(tasks=many(TASK))
TIERS = has(
    dry_run=FLAG,
    tiers=many(has(name=TEXT, root=TEXT, scope=TEXT, node=maybe(TEXT), budget=OBJECT)),
)
BUDGETS = has(dry_run=FLAG, tiers=many(OBJECT), nodes=many(OBJECT), fallback_percent=WHOLE)
FLOWS = has(flows=many(has(flow_id=TEXT, state=TEXT, bytes=WHOLE, moved_bytes=WHOLE)))
GRANTS = has(grants={"type": "object", "additionalProperties": OBJECT})
CLOSED = has(reaped=WHOLE)
USAGE = has(tiers=many(has(tier=TEXT, root=TEXT, checkpoint_bytes=WHOLE)))
NODE = has(
    node=TEXT, state={"enum": [one.value for one in NodeState]}, is_reachable=FLAG, beat_at_ns=WHOLE
)
ONE_NODE = has(node=NODE)
NODES = has(nodes=many(NODE))
TOKEN = has(token_id=TEXT, label=TEXT, rights=many({"enum": [one.value for one in Right]}))
TOKENS = has(tokens=many(TOKEN))
ONE_TOKEN = has(token=TOKEN)
MADE_TOKEN = has(token=TOKEN, secret=TEXT)
PLAN = has(
    plan_id=TEXT,
    state={"enum": [one.value for one in PlanState]},
    stored_at_ns=WHOLE,
    by=TEXT,
    note=TEXT,
    runs=WHOLE,
    checkpoints=WHOLE,
    freed_bytes=WHOLE,
    entries=many(has(run=TEXT, content_id=TEXT, place=TEXT, action=TEXT, why=many(OBJECT))),
    tiers=many(OBJECT),
    refusals=many(has(is_cap=FLAG, text=TEXT)),
    failures=many(has(run=TEXT, why=TEXT)),
)
PLANS = has(plans=many(PLAN))
STEP = has(run=TEXT, checkpoint=TEXT, content_id=TEXT, tier=TEXT, action=TEXT, went=TEXT)
APPLIED = has(plan_id=maybe(TEXT), is_dry_run=FLAG, freed_bytes=WHOLE, steps=many(STEP))
UNDELETED = has(is_dry_run=FLAG, steps=many(STEP), restored=many(OBJECT))
REMOVALS = has(
    run=maybe(TEXT),
    removals=many(
        has(
            content_id=TEXT,
            name=maybe(TEXT),
            step=maybe(WHOLE),
            place=TEXT,
            tier=TEXT,
            node=maybe(TEXT),
            state=TEXT,
            plan_id=maybe(TEXT),
            why=many(has(reason=TEXT, text=TEXT)),
            due_at_ns=maybe(WHOLE),
            undo=maybe(TEXT),
        )
    ),
)
FATE = has(tier=TEXT, places=PATHS, action=maybe(TEXT), why=many(has(reason=TEXT, text=TEXT)))
VERDICT = has(
    run_id=TEXT,
    run=TEXT,
    policy=maybe(TEXT),
    life=TEXT,
    checkpoints=many(has(content_id=TEXT, name=TEXT, step=maybe(WHOLE), tiers=many(FATE))),
    notes=PATHS,
)
POLICY = has(name=TEXT, file=TEXT, digest=TEXT, keep=OBJECT, capacity=OBJECT, safety=OBJECT)
POLICIES = has(policies=many(POLICY))
POLICY_OF_RUN = has(run=TEXT, policy=maybe(POLICY))
CHECKED_POLICIES = has(
    policies=many(has(name=TEXT, file=TEXT, digest=TEXT)),
    errors=many(has(kind=TEXT, message=TEXT)),
)
CLAIM = has(claim=has(claim_id=TEXT, content_id=TEXT, ends_at_ns=WHOLE))
SCANNED = has(runs=many(OBJECT))
VERIFIED = has(checkpoints=many(OBJECT), notes=many(NOTE))
FLUSHED = has(checkpoints=many(OBJECT), skipped=many(OBJECT))
RECONCILED = has(is_dry_run=FLAG, tiers=many(OBJECT))
NOTHING = OBJECT

POSTED = {
    "type": "object",
    "description": "messages of an agent (ckptgov.wire.facts, ckptgov.wire.parts), version 1",
}
HEALTH = has(status=TEXT)
