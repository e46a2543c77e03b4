"""What a service is told in ``ckptgov.yaml``: catalog, schedule, backups, notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptgov.config.load import load_settings
from ckptgov.errors import ConfigError
from ckptgov.model.settings import CADENCES, Cadence

TIER = "tiers: [{name: s3, url: /srv/s3}]\n"


def settings_of(tmp_path: Path, text: str, environ: dict[str, str] | None = None):
    (tmp_path / "ckptgov.yaml").write_text(text)
    return load_settings(str(tmp_path), environ or {})


def test_without_a_word_the_catalog_is_a_file_and_everything_runs_at_its_default(tmp_path) -> None:
    settings = settings_of(tmp_path, "")
    assert settings.catalog_url is None
    assert settings.service.cadences == CADENCES


def test_the_environment_wins_over_the_file(tmp_path) -> None:
    text = "catalog: postgresql://one@db/ckptgov\n"
    assert settings_of(tmp_path, text).catalog_url == "postgresql://one@db/ckptgov"
    environ = {"CKPTGOV_CATALOG": "postgresql://two@db/ckptgov"}
    assert settings_of(tmp_path, text, environ).catalog_url == "postgresql://two@db/ckptgov"


@pytest.mark.parametrize(
    "url",
    ["mysql://u:hunter2@h/d", "postgresql://u:hunter2@h", "postgresql://u:hunter2@h:port/d"],
)
def test_a_wrong_catalog_is_refused_without_repeating_its_password(tmp_path, url: str) -> None:
    for text, environ in ((f"catalog: {url}\n", {}), ("", {"CKPTGOV_CATALOG": url})):
        with pytest.raises(ConfigError) as caught:
            settings_of(tmp_path, text, environ)
        assert "hunter2" not in caught.value.message


def test_activities_take_their_own_times_and_the_others_keep_theirs(tmp_path) -> None:
    text = "service: {activities: {scan: {every: 30s, slo: 5m}, verify: {every: 0s}}}\n"
    cadences = settings_of(tmp_path, text).service.cadences
    assert cadences["scan"] == Cadence(every_s=30.0, slo_s=300.0)
    assert cadences["verify"].every_s == 0
    assert cadences["flush"] == CADENCES["flush"]


def test_a_slower_activity_is_not_late_by_its_own_pace(tmp_path) -> None:
    text = "service: {activities: {scan: {every: 1d}}}\n"
    assert settings_of(tmp_path, text).service.cadences["scan"].slo_s == 3 * 86400


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("service: {activities: {scann: {every: 1m}}}\n", 'did you mean "scan"'),
        ("service: {activities: {scan: {every: 1h, slo: 1m}}}\n", '"slo" is shorter'),
        (TIER + "service: {backup: {tier: s4}}\n", "s3"),
        ("service: {backup: {tier: s3}}\n", "(no tier)"),
        ("service: {notify: ftp://x}\n", "http"),
        ("service: {node_timeout: 1s}\n", "node_timeout"),
    ],
)
def test_what_cannot_be_meant_is_told_with_its_line(tmp_path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(tmp_path, text)
    told = f"{caught.value.message} {caught.value.hint}"
    assert words in told
    assert "ckptgov.yaml:" in told


def test_backups_go_to_a_tier_and_so_many_are_kept(tmp_path) -> None:
    service = settings_of(tmp_path, TIER + "service: {backup: {tier: s3, keep: 3}}\n").service
    assert (service.backup_tier, service.backups_kept) == ("s3", 3)
