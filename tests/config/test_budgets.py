"""Budgets and links are changed in the file, and nothing else in it."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptgov.config.budgets import change_budget
from ckptgov.config.edit import add_link, add_tier
from ckptgov.config.load import load_settings
from ckptgov.errors import ConfigError, UsageError
from ckptgov.model.pacing import Budget
from ckptgov.model.settings import Link, NodeSettings, Proof, Scope, Settings, TierSettings

READ = Budget(read_bytes_per_s=10**9)
BOTH = Budget(read_bytes_per_s=2 * 10**9, write_bytes_per_s=2**20)
ALL = Budget(read_bytes_per_s=10**9, write_bytes_per_s=3 * 10**6, requests_per_s=500, flows=4)


def set_budget(home: str, tier: str | None, node: str | None, budget: Budget) -> Settings:
    return change_budget(home, tier, node, lambda _old: budget)


def changed(tmp_path, before: str, budget: Budget, *, node: str | None = None) -> str:
    path = tmp_path / "ckptgov.yaml"
    path.write_bytes(before.encode())
    old = load_settings(str(tmp_path))
    new = set_budget(str(tmp_path), "a", node, budget)
    assert new == load_settings(str(tmp_path))
    assert [one.budget for one in new.tiers if one.name == "a"] == [budget]
    assert [one for one in new.tiers if one.name != "a"] == [
        one for one in old.tiers if one.name != "a"
    ]
    return path.read_bytes().decode()


CASES = [
    (
        "tiers: # mine\n  - name: a # x\n    url: /a # y\n\n  # next\n  - {name: b, url: /b}\n",
        READ,
        "tiers: # mine\n  - name: a # x\n    url: /a # y\n    budget: {read: 1GB/s}\n"
        "\n  # next\n  - {name: b, url: /b}\n",
    ),
    (
        "tiers:\n  - {name: a, url: /a} # x\n",
        BOTH,
        "tiers:\n  - {name: a, url: /a, budget: {read: 2GB/s, write: 1MiB/s}} # x\n",
    ),
    (
        "tiers:\n  - name: a\n    budget: # how much\n"
        "      read: 1GB/s # half\n      flows: 2 # two\n    url: /a\n",
        BOTH,
        "tiers:\n  - name: a\n    budget: # how much\n      read: 2GB/s # half\n"
        "      write: 1MiB/s\n    url: /a\n",
    ),
    (
        "tiers:\n  - name: a\n    url: /a\n    budget: {read: 2GB/s, flows: 3} # b\n",
        READ,
        "tiers:\n  - name: a\n    url: /a\n    budget: {read: 1GB/s} # b\n",
    ),
    (
        "tiers:\n  - name: a\n    url: /a\n    budget: {flows: 3, read: 2GB/s} # b\n",
        READ,
        "tiers:\n  - name: a\n    url: /a\n    budget: {read: 1GB/s} # b\n",
    ),
    (
        "tiers:\n  - name: a\n    # why\n"
        "    budget:\n      read: 2GB/s\n\n    # where\n    url: /a\n",
        Budget(),
        "tiers:\n  - name: a\n    # why\n\n    # where\n    url: /a\n",
    ),
    (
        "tiers:\n  - budget: {read: 1GB/s}\n    name: a\n    url: /a # y\n",
        Budget(),
        "tiers:\n  - name: a\n    url: /a # y\n",
    ),
    (
        "tiers: [{name: a, budget: {read: 1GB/s}, url: /a}]\n",
        Budget(),
        "tiers: [{name: a, url: /a}]\n",
    ),
    (
        "tiers: [{name: a, url: /a, budget: {read: 1GB/s}}]\n",
        Budget(),
        "tiers: [{name: a, url: /a}]\n",
    ),
    (
        "\ufefftiers:\r\n- name: a\r\n  url: /a\r\n",
        READ,
        "\ufefftiers:\r\n- name: a\r\n  url: /a\r\n  budget: {read: 1GB/s}\r\n",
    ),
    (
        "tiers:\n  - name: a\n    url: /a\n    budget: {}\n",
        READ,
        "tiers:\n  - name: a\n    url: /a\n    budget: {read: 1GB/s}\n",
    ),
]


@pytest.mark.parametrize(("before", "budget", "after"), CASES)
def test_a_changed_budget_leaves_everything_else_as_it_was(tmp_path, before, budget, after):
    assert changed(tmp_path, before, budget) == after


def test_setting_what_stands_there_touches_nothing(tmp_path):
    path = tmp_path / "ckptgov.yaml"
    path.write_text("tiers: [{name: a, url: /a, budget: {read: 1000MB/s}}]\n")
    inode = path.stat().st_ino
    set_budget(str(tmp_path), "a", None, READ)
    assert "1000MB/s" in path.read_text()
    assert path.stat().st_ino == inode


NVME = textwrap.dedent(
    """
    tiers:
      - {name: nvme, url: /nvme, scope: node, node: n1}
      - {name: nvme, url: /nvme, scope: node, node: n2}
    """
)


def test_a_tiers_budget_is_set_on_one_of_its_nodes(tmp_path):
    (tmp_path / "ckptgov.yaml").write_text(NVME)
    now = set_budget(str(tmp_path), "nvme", "n2", READ)
    assert [one.budget for one in now.tiers] == [Budget(), READ]


def test_a_tiers_budget_is_set_on_all_of_its_nodes(tmp_path):
    (tmp_path / "ckptgov.yaml").write_text(NVME)
    now = set_budget(str(tmp_path), "nvme", None, READ)
    assert [one.budget for one in now.tiers] == [READ, READ]


def test_a_nodes_budget_comes_changes_and_goes(tmp_path):
    home = str(tmp_path)
    assert set_budget(home, None, "n1", Budget()).nodes == ()
    assert set_budget(home, None, "n1", READ).nodes == (NodeSettings(name="n1", budget=READ),)
    assert set_budget(home, None, "n1", ALL).nodes == (NodeSettings(name="n1", budget=ALL),)
    cleared = set_budget(home, None, "n1", Budget())
    assert cleared.nodes == (NodeSettings(name="n1", budget=Budget()),)
    assert load_settings(home) == cleared


def test_a_nodes_budget_in_lines_of_its_own_goes(tmp_path):
    path = tmp_path / "ckptgov.yaml"
    path.write_text(
        "nodes:\n  - name: n1 # x\n    budget:\n      read: 1GB/s\n      flows: 1\n# e\n"
    )
    assert set_budget(str(tmp_path), None, "n1", Budget()).nodes[0].budget == Budget()
    assert path.read_text().startswith("nodes:\n  - name: n1 # x\n    budget:")
    assert path.read_text().endswith("# e\n")


@pytest.mark.parametrize(("tier", "node"), [("b", None), ("a", "n1"), (None, None)])
def test_a_budget_of_nothing_configured_is_refused(tmp_path, tier, node):
    (tmp_path / "ckptgov.yaml").write_text("tiers: [{name: a, url: /a}]\n")
    with pytest.raises(UsageError):
        set_budget(str(tmp_path), tier, node, READ)


def test_a_form_without_a_place_for_the_change_is_left_alone(tmp_path):
    path = tmp_path / "ckptgov.yaml"
    text = (
        "tiers:\n  - name: a\n    url: /a\n    budget:\n"
        "      read: >-\n        1GB/s\n      flows: 1\n"
    )
    path.write_text(text)
    with pytest.raises(ConfigError, match="left as it was"):
        set_budget(str(tmp_path), "a", None, BOTH)
    assert path.read_text() == text


budgets = st.builds(
    Budget,
    read_bytes_per_s=st.none() | st.integers(1, 10**13),
    write_bytes_per_s=st.none() | st.integers(1, 10**13),
    requests_per_s=st.none() | st.integers(1, 10**6),
    flows=st.none() | st.integers(1, 1000),
)
FORMS = [
    "tiers:\n  - name: a # one\n    url: /a # two\n# three\n",
    "tiers:\n  - {name: a, url: /a} # two\n# three\n",
    "tiers: [\n  {name: a, # one\n   url: /a # two\n  }]\n# three\n",
]


@given(st.sampled_from(FORMS), st.lists(budgets, max_size=4))
def test_any_row_of_budgets_leaves_the_comments(tmp_path_factory, form, row):
    home = tmp_path_factory.mktemp("home", numbered=True)
    path = home / "ckptgov.yaml"
    path.write_text(form)
    for budget in row:
        assert set_budget(str(home), "a", None, budget).tiers[0].budget == budget
    assert all(word in path.read_text() for word in ("# two", "# three"))


def test_an_added_tier_carries_all_its_settings(tmp_path):
    tiers = (
        TierSettings(
            name="s3",
            root="s3://bucket/a",
            endpoint="http://store:8333",
            budget=ALL,
            proof=Proof.READBACK,
            quota_bytes=50 * 10**12,
        ),
        TierSettings(name="n", root="/n", scope=Scope.NODE, node="n1", budget=READ),
        TierSettings(name="other", root="abfs://c@account/x"),
    )
    for tier in tiers:
        add_tier(str(tmp_path), tier)
    assert load_settings(str(tmp_path)).tiers == tiers
    assert "quota: 50TB" in (tmp_path / "ckptgov.yaml").read_text()


def test_added_links_are_read_back(tmp_path):
    path = tmp_path / "ckptgov.yaml"
    path.write_text("tiers: # mine\n  - {name: a, url: /a}\n  - {name: b, url: /b}\n")
    links = (
        Link(source="a", target="b", every_s=3600.0, every_steps=10, pins=("x", "y z"), hold=True),
    )
    add_link(str(tmp_path), links[0])
    assert load_settings(str(tmp_path)).links == links
    assert "every: 1h" in path.read_text()
    assert path.read_text().startswith("tiers: # mine\n")


def test_a_link_that_would_not_load_changes_nothing(tmp_path):
    path = tmp_path / "ckptgov.yaml"
    path.write_text("tiers: [{name: a, url: /a}, {name: b, url: /b}]\n")
    add_link(str(tmp_path), Link(source="a", target="b", every=1))
    text = path.read_text()
    for link in (Link(source="b", target="a", last=1), Link(source="a", target="c", last=1)):
        with pytest.raises(ConfigError):
            add_link(str(tmp_path), link)
    assert path.read_text() == text
