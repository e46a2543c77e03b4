"""The tier commands: URLs of any scheme, budgets, links, checks through a second mount."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptgov.config.load import load_settings
from ckptgov.model.pacing import Budget
from ckptgov.model.settings import Link, NodeSettings
from ckptgov.ops import tiers
from ckptgov.storage.open import open_storage
from ckptgov.testing.builders import write_dcp


@pytest.fixture
def settings(home: Path):
    """What configuration says now."""
    return lambda: load_settings(str(home))


@pytest.fixture
def two(cli, tmp_path: Path) -> tuple[Path, Path]:
    """A node's tier nvme and a shared one, lustre."""
    roots = (tmp_path / "nvme", tmp_path / "lustre")
    for root in roots:
        root.mkdir()
    cli.done("tier", "add", "nvme", roots[0], "--node", "node7")
    cli.done("tier", "add", "lustre", roots[1], "--write", "200MB/s", "--quota", "50TB")
    return roots


def test_a_store_of_any_scheme_holds_runs(cli, tmp_path) -> None:
    root = f"memory://{tmp_path.name}/ckpt"
    write_dcp(tmp_path / "step_1")
    storage = open_storage(root)
    for path in sorted((tmp_path / "step_1").iterdir()):
        storage.publish(f"run/step_1/{path.name}", [path.read_bytes()])
    cli.done("tier", "add", "mem", root, "--proof", "readback")
    cli.done("scan", f"{root}/run")
    assert cli("latest", "run").out == f"{root}/run/step_1\n"
    assert cli.json("latest", f"{root}/run", "--evidence", "digest").code == 0
    assert cli.json("commit", f"{root}/run").code == 2


def test_a_tier_is_added_with_all_it_may_be_told(cli, two, settings) -> None:
    lustre = settings().tiers[1]
    assert (lustre.budget, lustre.quota_bytes) == (
        Budget(write_bytes_per_s=2 * 10**8),
        50 * 10**12,
    )
    listed = cli.json("tier", "list").json["tiers"][1]
    assert listed["budget"]["write_bytes_per_s"] == 2 * 10**8
    assert "write 200MB/s" in cli("tier", "list").out


def test_what_configuration_would_refuse_is_refused_before_anything_is_minted(
    cli, tmp_path, home
) -> None:
    root = tmp_path / "tier"
    root.mkdir()
    assert cli.json("tier", "add", "a", root, "--proof", "arrival-checksum").code == 2
    assert cli.json("tier", "add", "a", root, "--endpoint", "http://store").code == 2
    assert list(root.iterdir()) == []
    assert not (home / "ckptgov.yaml").exists()


def test_the_probing_of_a_store_says_what_it_lacks(cli, tmp_path, monkeypatch) -> None:
    from ckptgov.work import abilities

    lying = abilities.Abilities(publish_durable=True, exclusive_create=False)
    monkeypatch.setattr(abilities, "probe", lambda *_given, **_named: lying)
    added = cli("tier", "add", "mem", f"memory://{tmp_path.name}/x")
    assert added.code == 0
    assert "mem: exclusive-create" in added.err


def test_a_budget_is_changed_limit_by_limit_and_comments_stay(cli, two, home, settings) -> None:
    path = home / "ckptgov.yaml"
    path.write_text("# ours\n" + path.read_text().replace("\n", " # why\n", 2) + "# end\n")
    cli.done("tier", "budget", "lustre", "--read", "1GB/s", "--flows", "4")
    assert settings().tiers[1].budget == Budget(
        read_bytes_per_s=10**9, write_bytes_per_s=2 * 10**8, flows=4
    )
    cli.done("tier", "budget", "lustre", "--write", "none")
    assert settings().tiers[1].budget == Budget(read_bytes_per_s=10**9, flows=4)
    cli.done("tier", "budget", "lustre", "--clear", "--requests", "500/s")
    assert settings().tiers[1].budget == Budget(requests_per_s=500)
    cli.done("tier", "budget", "lustre", "--clear")
    assert settings().tiers[1].budget == Budget()
    text = path.read_text()
    assert text.startswith("# ours\n")
    assert text.endswith("# end\n")
    assert text.count("# why") == 2


def test_a_nodes_budget_is_set_without_a_tier(cli, two, settings) -> None:
    cli.done("tier", "budget", "--node", "node7", "--read", "3GB/s")
    cli.done("tier", "budget", "nvme", "--node", "node7", "--read", "2GB/s")
    told = settings()
    assert told.nodes == (NodeSettings(name="node7", budget=Budget(read_bytes_per_s=3 * 10**9)),)
    assert told.tiers[0].budget == Budget(read_bytes_per_s=2 * 10**9)
    shown = cli.json("tier", "budget").json
    assert [one["tier"] for one in shown["tiers"]] == ["nvme", "lustre"]
    assert shown["nodes"][0]["budget"]["read_bytes_per_s"] == 3 * 10**9
    assert cli("tier", "budget", "lustre").out == "lustre\t-\t-\t200MB/s\t-\t-\n"


def test_a_dry_run_shows_a_budget_and_changes_nothing(cli, two, home) -> None:
    before = (home / "ckptgov.yaml").read_bytes()
    told = cli.json("tier", "budget", "lustre", "--read", "1GB/s", "--dry-run")
    assert told.json["tiers"][0]["budget"]["read_bytes_per_s"] == 10**9
    assert told.json["dry_run"] is True
    assert cli.json("tier", "link", "nvme", "lustre", "--every", "1", "--dry-run").code == 0
    assert (home / "ckptgov.yaml").read_bytes() == before


@pytest.mark.parametrize(
    "words",
    [
        ("lustre", "--read", "1Gb/s"),
        ("lustre", "--read", "1GB"),
        ("lustre", "--flows", "0"),
        ("lustre", "--requests", "fast"),
        ("nowhere", "--read", "1GB/s"),
        ("lustre", "--node", "node7", "--read", "1GB/s"),
        ("--read", "1GB/s"),
        ("nowhere",),
    ],
)
def test_an_impossible_budget_is_refused(cli, two, home, words) -> None:
    before = (home / "ckptgov.yaml").read_bytes()
    assert cli.json("tier", "budget", *words).code == 2
    assert (home / "ckptgov.yaml").read_bytes() == before


def test_tiers_are_linked_by_rules(cli, two, settings) -> None:
    cli.done(
        *("tier", "link", "nvme", "lustre", "--every", "1h", "--every-steps", "1000"),
        *("--last", "2", "--pin", "gold", "--pin", "best", "--hold"),
    )
    assert settings().links == (
        Link(
            source="nvme",
            target="lustre",
            every_s=3600.0,
            every_steps=1000,
            last=2,
            pins=("gold", "best"),
            hold=True,
        ),
    )


@pytest.mark.parametrize(
    "words",
    [
        ("nvme", "lustre"),
        ("nvme", "nowhere", "--every", "1"),
        ("nvme", "nvme", "--every", "1"),
        ("nvme", "lustre", "--every", "0"),
        ("nvme", "lustre", "--every", "often"),
    ],
)
def test_an_impossible_link_is_refused(cli, two, settings, words) -> None:
    assert cli.json("tier", "link", *words).code == 2
    assert settings().links == ()


def test_a_tier_is_checked_through_a_second_mount(cli, two, tmp_path, monkeypatch) -> None:
    again = tmp_path / "again"
    again.symlink_to(two[1])
    refused = cli.json("tier", "check", "lustre", "--via", again)
    assert refused.code == 2
    assert "no second mount" in refused.json["error"]["message"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert cli.json("tier", "check", "lustre", "--via", elsewhere).code == 2
    monkeypatch.setattr(tiers.addresses, "real", str)  # a symlink stands for the mount
    told = cli.json("tier", "check", "lustre", "--via", again)
    names = {one["name"]: one["severity"] for one in told.json["checks"]}
    assert (told.code, names["exclusive-create-between-mounts"]) == (0, "ok")
    assert sorted(path.name for path in two[1].iterdir()) == [".ckptgov-tier.json"]
