"""The name of one restart, composed of what its schedulers put into the environment.

All ranks of one restart must compose the same name, and two restarts must never share one: the
first would split them, the second would hand out what an earlier restart was given. Every source
that speaks is used, because each may restart what runs inside it; at least one of them must name
its starts by itself. Sources, as documented by their projects:

- Slurm: ``SLURM_JOB_ID``, ``SLURM_RESTART_COUNT`` (unset before the first requeue),
  ``SLURM_STEP_ID`` (one ``srun``);
- torchrun (torch 2.14 read): run id, restart count, master address and port, world size. A run
  id of "none" is its default and names nothing. A change of members raises no count, and the
  port is a new one only with ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``;
- Kubernetes, through the downward API: JobSet's uid and restart attempt, Volcano's pod group
  (which carries the uid) and version, a batch Job's uid (which does not change when a queue
  suspends and resumes it, and so is not enough).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from ckptgov.errors import UsageError

OUTER = "CKPTGOV_RESTART_ID"
"""Set for a started command, and by whoever knows a better name for what is outside."""

_HINT = (
    "give --restart-id X, the same for all ranks of this restart and for no other restart, or "
    "set what names it: SLURM_JOB_ID (Slurm does); JOBSET_UID and JOBSET_RESTART_ATTEMPT, or "
    "VOLCANO_POD_GROUP and VOLCANO_JOB_VERSION (downward API); torchrun's --rdzv-id"
)
_UID_AT_END = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_TORCH = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


class RestartName(Struct, frozen=True, kw_only=True):
    """``is_alone``: one process asks for all ranks, so nobody else should have asked before."""

    restart_id: str
    is_alone: bool


class _Part(Struct, frozen=True):
    text: str
    names_starts: bool = True


def compose(environ: Mapping[str, str]) -> RestartName:
    """The restart that this process belongs to.

    Raises:
        UsageError: the environment does not tell one restart from the next.
    """
    if _set(environ, "OMPI_COMM_WORLD_SIZE") and not _set(environ, OUTER):
        raise UsageError("mpirun does not tell its ranks which start they are", hint=_HINT)
    torch = _torchelastic(environ)
    sources = (_outer(environ), _slurm(environ), *_kubernetes(environ), torch)
    parts = [part for part in sources if part is not None]
    if not any(part.names_starts for part in parts):
        raise UsageError("nothing here tells this restart from another one", hint=_HINT)
    is_step = _set(environ, "SLURM_STEP_ID") or torch is not None
    return RestartName(
        restart_id="/".join(part.text for part in parts),
        is_alone=_set(environ, "SLURM_JOB_ID") and not is_step,
    )


def rank_of(environ: Mapping[str, str]) -> str:
    """This process among those of its restart; "0" where it is the only one."""
    for name in ("RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"):
        if _set(environ, name):
            return environ[name].strip()
    return "0"


def is_first_rank(environ: Mapping[str, str]) -> bool:
    """Whether this process speaks for all ranks."""
    return rank_of(environ) == "0"


def _set(environ: Mapping[str, str], name: str) -> bool:
    return bool(environ.get(name, "").strip())


def _outer(environ: Mapping[str, str]) -> _Part | None:
    return _Part(environ[OUTER].strip()) if _set(environ, OUTER) else None


def _slurm(environ: Mapping[str, str]) -> _Part | None:
    if not _set(environ, "SLURM_JOB_ID"):
        return None
    words = [environ[name] for name in ("SLURM_CLUSTER_NAME",) if _set(environ, name)]
    count = environ.get("SLURM_RESTART_COUNT", "").strip() or "0"
    numbers = [environ["SLURM_JOB_ID"].strip(), count]
    if _set(environ, "SLURM_STEP_ID"):
        numbers.append(environ["SLURM_STEP_ID"].strip())
    return _Part("-".join(["slurm", *words, ".".join(numbers)]))


def _kubernetes(environ: Mapping[str, str]) -> list[_Part | None]:
    return [
        _numbered(environ, "jobset", "JOBSET_UID", "JOBSET_RESTART_ATTEMPT"),
        _volcano(environ),
        _Part(f"batch-{environ['BATCH_JOB_UID'].strip()}", names_starts=False)
        if _set(environ, "BATCH_JOB_UID")
        else None,
    ]


def _numbered(environ: Mapping[str, str], kind: str, uid: str, attempt: str) -> _Part | None:
    if not (_set(environ, uid) and _set(environ, attempt)):
        return None
    return _Part(f"{kind}-{environ[uid].strip()}.{environ[attempt].strip()}")


def _volcano(environ: Mapping[str, str]) -> _Part | None:
    """A pod group named without the uid could be that of an earlier run of the same name."""
    part = _numbered(environ, "volcano", "VOLCANO_POD_GROUP", "VOLCANO_JOB_VERSION")
    if part is None or not _UID_AT_END.search(environ["VOLCANO_POD_GROUP"].strip()):
        return None
    return part


def _torchelastic(environ: Mapping[str, str]) -> _Part | None:
    """The world size tells one membership from the next, which raises no count."""
    if not _set(environ, "TORCHELASTIC_RUN_ID"):
        return None
    missing = [name for name in _TORCH if not _set(environ, name)]
    if missing:
        raise UsageError(f"torchrun's worker has no {' and no '.join(missing)}", hint=_HINT)
    run_id, count, address, port = (environ[name].strip() for name in _TORCH)
    size = f"x{environ['WORLD_SIZE'].strip()}" if _set(environ, "WORLD_SIZE") else ""
    return _Part(
        f"torchelastic-{run_id}.{count}@{address}:{port}{size}", names_starts=run_id != "none"
    )
