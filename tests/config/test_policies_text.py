"""A policy written out with everything that holds by default reads back as itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.config.policies import parse_policy
from ckptgov.config.policy_text import policy_text, selector_text
from ckptgov.model.policy import Policy

POLICIES = Path(__file__).resolve().parents[2] / "policies"
REFERENCE = re.findall(r"```yaml\n(.*?)```", (POLICIES / "README.md").read_text(), re.DOTALL)
TEXTS = [
    *(path.read_text() for path in sorted(POLICIES.glob("*.yaml")) if path.stem != "starter"),
    *(text for text in REFERENCE if text.startswith("policy:")),
    "policy: p\n",
    "policy: p\nflush: []\nseal: {settle: 0s}\n",
    "policy: p\nruns: ['*', '![a-z]?', 'yes', '\"odd\\\\ name']\ntags: ['!x', 'on']\n",
    "policy: p\nkeep: {s3: {best: [{metric: 'eval/loss: \"x\"', mode: max, count: all}]}}\n",
    "policy: p\nkeep: {s3: {best: {metric: l, mode: min, ties: oldest, nan: worst}}}\n",
    "policy: p\nkeep: {s3: {last: all}}\nlifecycle: {retired: {keep: {}, may_be_emptied: yes}}\n",
    "policy: p\nlifecycle: {retired: {may_be_emptied: true, after: 90s}}\n",
    "policy: p\ncapacity: {s3: {quota: 1234567, high: 9%, low: 8%, yields: []}}\n",
    "policy: p\nkeep: {s3: {steps: [0, 7], tags: ['null', '7']}}\nold_lines: {after: 0s}\n",
]


def read(text: str) -> Policy:
    return parse_policy(text, file="p.yaml", tiers=None)


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_shown_says_the_same(text):
    policy = read(text)
    shown = read(policy_text(policy))
    assert replace(shown, digest=policy.digest) == policy
    assert policy_text(shown) == policy_text(policy)


def test_what_is_shown_names_the_defaults():
    shown = policy_text(read("policy: p\n"))
    assert "min_restorable: 2" in shown
    assert "adoption_grace: 7d" in shown
    assert "max_fraction: " in shown
    assert 'runs: ["*"]' in shown


@pytest.mark.parametrize(
    ("runs", "teams", "tags", "words"),
    [
        (("*",), (), (), "every run"),
        (("a", "!b"), (), (), "runs a, !b"),
        (("*",), ("lm",), ("x", "y"), "team lm; tags x, y"),
    ],
)
def test_a_selector_is_told_in_words(runs, teams, tags, words):
    assert selector_text(runs, teams, tags) == words
