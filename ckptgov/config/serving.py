"""The part of the schema that only a service needs: its catalog, its schedule, whom it tells."""

from __future__ import annotations

from urllib.parse import urlsplit

from ckptgov.config.document import Item, shown
from ckptgov.errors import ConfigError
from ckptgov.model.settings import CADENCES, Cadence, ServiceSettings, TierSettings

_DAY_S = 86400
_SERVICE_KEYS = ("activities", "node_timeout", "backup", "notify")
_CADENCE_KEYS = ("every", "slo")
_BACKUP_KEYS = ("tier", "keep")
CATALOG_SCHEMES = ("postgresql", "postgresql+psycopg")
CATALOG_VARIABLE = "CKPTGOV_CATALOG"


def catalog_of(item: Item) -> str:
    """The URL of a cluster's catalog."""
    url = item.text()
    fault = catalog_fault(url)
    if fault is not None:
        raise item.wrong(f'"catalog" {fault}')
    return url


def catalog_from(variable: str) -> str:
    """The same out of the environment.

    Raises:
        ConfigError: it is no such URL; a password in it is not repeated.
    """
    fault = catalog_fault(variable)
    if fault is not None:
        raise ConfigError(f"{CATALOG_VARIABLE} {fault}")
    return variable


def catalog_fault(url: str) -> str | None:
    """What is wrong with the URL of a catalog, in words that do not repeat it."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in CATALOG_SCHEMES:
        return "must be the URL of a PostgreSQL database: postgresql://user@host/database"
    if not parts.path.strip("/"):
        return "names no database: postgresql://user@host/database"
    return None


def service_of(item: Item, tiers: tuple[TierSettings, ...]) -> ServiceSettings:
    """What runs when, and who is told."""
    entries = item.table(_SERVICE_KEYS)
    default = ServiceSettings()
    backup_tier, kept = default.backup_tier, default.backups_kept
    if "backup" in entries:
        backup = entries["backup"].table(_BACKUP_KEYS, required=("tier",))
        backup_tier = backup["tier"].one_of(sorted({one.name for one in tiers}) or ["(no tier)"])
        kept = backup["keep"].whole(1, 10_000) if "keep" in backup else kept
    timeout = entries.get("node_timeout")
    return ServiceSettings(
        cadences=_cadences(entries.get("activities")),
        node_timeout_s=(
            default.node_timeout_s if timeout is None else timeout.duration_s(10, _DAY_S)
        ),
        backup_tier=backup_tier,
        backups_kept=kept,
        notify_url=_notify(entries["notify"]) if "notify" in entries else None,
    )


def _cadences(item: Item | None) -> dict[str, Cadence]:
    told = item.table(tuple(CADENCES)) if item is not None else {}
    return {
        name: _cadence(told[name], default) if name in told else default
        for name, default in CADENCES.items()
    }


def _cadence(item: Item, default: Cadence) -> Cadence:
    """``every: 0s`` turns the activity off; its promise then means nothing."""
    entries = item.table(_CADENCE_KEYS)
    every = entries.get("every")
    every_s = default.every_s if every is None else every.duration_s(0, 365 * _DAY_S)
    slo = entries.get("slo")
    slo_s = max(default.slo_s, 3 * every_s) if slo is None else slo.duration_s(1, 3650 * _DAY_S)
    if every_s and slo_s < every_s:
        raise item.wrong(f'"slo" is shorter than "every": {shown(item.name)} would always be late')
    return Cadence(every_s=every_s, slo_s=slo_s)


def _notify(item: Item) -> str:
    url = item.text()
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise item.wrong('"notify" must be an http or https URL')
    return url
