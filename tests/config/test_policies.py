"""Policy files: what is read, what is refused and on which line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ckptgov.config import document
from ckptgov.config.policies import parse_policy
from ckptgov.errors import ConfigError
from ckptgov.model.policy import (
    ALL,
    DAY_S,
    HOUR_S,
    Best,
    Calendar,
    CapacityRule,
    Floors,
    KeepRules,
    Lifecycle,
    OldLines,
    Policy,
    Safety,
    Selector,
    Yields,
)
from ckptgov.model.settings import Link

POLICIES = Path(__file__).resolve().parents[2] / "policies"
PRESETS = ("default", "long-pretrain", "finetune", "scratch-tight")
TIERS = ("nvme", "shared", "s3")


@pytest.fixture(params=["c", "python"])
def either_parser(request, monkeypatch):
    """PyYAML comes with and without libyaml; both must give the same lines."""
    loader = yaml.SafeLoader if request.param == "python" else yaml.CSafeLoader
    monkeypatch.setattr(document, "_LOADER", loader)


def read(text: str, *, tiers=TIERS, stores=()) -> Policy:
    return parse_policy(text, file="p.yaml", tiers=tiers, stores=stores)


def refusal(text: str, **options) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(text, **options)
    assert caught.value.exit_code == 2
    return caught.value


def examples() -> list[str]:
    """The policies that the reference shows."""
    blocks = re.findall(r"```yaml\n(.*?)```", (POLICIES / "README.md").read_text(), re.DOTALL)
    return [one for one in blocks if one.startswith("policy:")]


@pytest.mark.usefixtures("either_parser")
def test_every_key_of_the_reference_is_read():
    (text,) = examples()
    policy = read(text)
    assert policy.digest.startswith("sha256:")
    assert policy == Policy(
        name="example",
        digest=policy.digest,
        file="p.yaml",
        selector=Selector(
            runs=("lm/*", "!lm/debug-*"), teams=("lm",), tags=("pretrain", "!archived")
        ),
        timezone="Europe/Berlin",
        keep={
            "nvme": KeepRules(last=2),
            "shared": KeepRules(
                last=5,
                first=1,
                within_s=DAY_S,
                buckets=(
                    (Calendar.HOURLY, 12),
                    (Calendar.DAILY, 7),
                    (Calendar.WEEKLY, 4),
                    (Calendar.MONTHLY, 12),
                    (Calendar.YEARLY, ALL),
                ),
                every_steps=10000,
                every_s=6 * HOUR_S,
                best=(
                    Best(metric="eval_loss", count=3, missing_for_s=12 * HOUR_S),
                    Best(metric="accuracy", is_highest=True),
                ),
                recorded_best=True,
                steps=(1234, 98765),
                tags=("release", "paper"),
                older_than_detection_s=3 * DAY_S,
            ),
        },
        weights={"shared": KeepRules(last=3)},
        old_lines=OldLines(after_s=30 * DAY_S),
        floors=Floors(min_restorable=2, min_durable_copies=1, min_age_s=6 * HOUR_S),
        capacity={
            "nvme": CapacityRule(reserve_saves=1),
            "shared": CapacityRule(
                quota_bytes=400 * 10**12,
                quota_files=5_000_000,
                high_percent=90,
                low_percent=80,
                yields=(
                    Yields.COPIES,
                    Yields.EVERY_STEPS,
                    Yields.EVERY,
                    Yields.HOURLY,
                    Yields.DAILY,
                    Yields.WITHIN,
                ),
            ),
        },
        safety=Safety(
            max_count=200,
            max_fraction_percent=50,
            max_bytes=10**14,
            grace_s=DAY_S,
            trash_s=7 * DAY_S,
            adoption_grace_s=7 * DAY_S,
        ),
        lifecycle=Lifecycle(
            dead_after_s=14 * DAY_S,
            retire_dead_after_s=30 * DAY_S,
            retired_keep=KeepRules(last=1, tags=("release",)),
            retired_after_s=7 * DAY_S,
        ),
        links=(Link(source="nvme", target="shared", every=1, hold=True),),
        settle_s=60.0,
        verify_max_age_s=7 * DAY_S,
    )


def test_a_policy_of_a_name_alone_is_for_every_run_and_keeps_everything():
    policy = read("policy: p\n")
    assert policy == Policy(name="p", digest=policy.digest, file="p.yaml")


@pytest.mark.parametrize(
    "text", ["keep:\n", "keep: {}\n", "keep: {nvme: }\n", "keep: {nvme: {}}\n"]
)
def test_a_tier_without_rules_is_one_that_is_not_named(text):
    assert read(f"policy: p\n{text}").keep == {}


def test_the_digest_is_of_the_text():
    one, same, other = read("policy: p\n"), read("policy: p\n"), read("policy: p \n")
    assert one.digest == same.digest != other.digest


def test_a_count_may_be_all():
    rules = read("policy: p\nkeep: {s3: {last: all}}\n").keep["s3"]
    assert rules.last == ALL


def test_ties_and_what_is_no_number_are_said_with_the_metric():
    best = "{metric: loss, mode: min, ties: %s, nan: %s}"
    for ties, nan in (("newest", "never"), ("oldest", "worst")):
        text = f"policy: p\nkeep: {{s3: {{best: {best % (ties, nan)}}}}}\n"
        wanted = Best(metric="loss", ties_to_oldest=ties == "oldest", nan_is_worst=nan == "worst")
        assert read(text).keep["s3"].best == (wanted,)


def test_one_best_needs_no_list():
    rules = read("policy: p\nkeep: {s3: {best: {metric: loss, mode: min}}}\n").keep["s3"]
    assert rules.best == (Best(metric="loss"),)


def test_no_links_at_all_are_something_else_than_none_said():
    assert read("policy: p\nflush: []\n").links == ()
    assert read("policy: p\n").links is None


def test_tiers_go_by_any_name_where_none_are_known():
    assert "lustre" in read("policy: p\nkeep: {lustre: {last: 1}}\n", tiers=None).keep


KEEP = "policy: p\nkeep:\n  nvme:\n"
CAPACITY = "policy: p\nkeep: {nvme: {daily: 7}}\ncapacity:\n  nvme: "
REFUSED = [
    ("", 1, "says nothing"),
    ("# only words\n", 1, "says nothing"),
    ("runs: x\n", 1, '"policy" is missing'),
    ("policy: a b\n", 1, '"policy" may hold letters'),
    ("policy: 7\n", 1, '"policy" must be text'),
    ("policy: p\nkep: {}\n", 2, 'unknown key "kep"; did you mean "keep"?'),
    ("policy: p\n\npolicy: q\n", 3, '"policy" is given twice (first on line 1)'),
    ("policy: p\nkeep: {nvme: {last: 1}, nvme: {}}\n", 2, '"nvme" is given twice'),
    (
        "policy: p\nkeep: {nmve: {last: 1}}\n",
        2,
        'no tier "nmve" is configured; did you mean "nvme"?',
    ),
    ("policy: p\nkeep: {[a]: {}}\n", 2, "the name of a tier is wanted"),
    ("policy: p\nkeep: [nvme]\n", 2, "must be a table"),
    (KEEP + "    latest: 1\n", 4, 'unknown key "latest"'),
    (KEEP + "    dayly: 1\n", 4, 'did you mean "daily"?'),
    (KEEP + "    last: 0\n", 4, '"last" must be from 1 to 1000000000, not 0'),
    (KEEP + "    last: -1\n", 4, '"last" must be a whole number'),
    (KEEP + "    last: 2.5\n", 4, '"last" must be a whole number of 1 or more, or "all"'),
    (KEEP + "    last: every\n", 4, 'or "all", not "every"'),
    (KEEP + "    last:\n", 4, 'or "all", not nothing'),
    (KEEP + "    daily: 0\n", 4, '"daily" must be from 1'),
    (KEEP + "    within: 24\n", 4, '"within" must be a length of time'),
    (KEEP + "    within: 0s\n", 4, '"within" must be from 1s'),
    (KEEP + "    every_steps: 0\n", 4, '"every_steps" must be from 1'),
    (KEEP + "    every_steps: all\n", 4, "must be a whole number"),
    (KEEP + "    steps: []\n", 4, '"steps" names none'),
    (KEEP + "    steps: [1,\n      1]\n", 5, "step 1 is named twice"),
    (KEEP + "    tags: []\n", 4, '"tags" names none'),
    (KEEP + "    tags: [a, a]\n", 4, '"a" is named twice'),
    (KEEP + "    recorded_best: 1\n", 4, "must be true or false"),
    (KEEP + "    best: {metric: x}\n", 4, '"mode" is missing'),
    (KEEP + "    best: {mode: min}\n", 4, '"metric" is missing'),
    (KEEP + "    best: {metric: x, mode: lowest}\n", 4, '"mode" is "lowest"; known are max, min'),
    (KEEP + "    best: {metric: x, mode: min, count: 0}\n", 4, '"count" must be from 1'),
    (KEEP + "    best: {metric: x, mode: min, ties: first}\n", 4, '"ties" is "first"; known are'),
    (KEEP + "    best: {metric: x, mode: min, nan: best}\n", 4, '"nan" is "best"; known are'),
    (KEEP + "    best: []\n", 4, "names no metric"),
    (
        KEEP
        + "    best:\n      - {metric: x, mode: min}\n      - {metric: x, mode: min, count: 2}\n",
        6,
        "are kept twice",
    ),
    (KEEP + "    last: all\n    daily: 7\n", 5, '"daily" keeps nothing that "last: all" (line 4)'),
    (
        KEEP + "    daily: 7\n    first: all\n",
        4,
        '"daily" keeps nothing that "first: all" (line 5)',
    ),
    (KEEP + "    every_steps: 1\n    last: 2\n", 5, '"last" keeps nothing that "every_steps: 1"'),
    (KEEP + "    hourly: all\n    daily: 7\n", 5, '"daily" keeps nothing that "hourly: all"'),
    (KEEP + "    daily: all\n    weekly: 4\n", 5, '"weekly" keeps nothing that "daily: all"'),
    (KEEP + "    daily: all\n    monthly: 4\n", 5, '"monthly" keeps nothing that "daily: all"'),
    (KEEP + "    monthly: all\n    yearly: 1\n", 5, '"yearly" keeps nothing that "monthly: all"'),
    (KEEP + "    every_steps: 10\n    steps: [20, 0]\n", 5, '"steps" keeps nothing'),
    ("policy: p\nweights:\n  s3: {last: all,\n    first: 1}\n", 4, '"first" keeps nothing'),
    (
        "policy: p\nlifecycle:\n  retired:\n    keep: {last: all,\n      daily: 1}\n",
        5,
        '"daily" keeps nothing',
    ),
    ("policy: p\ntimezone: Europe/Berln\n", 2, 'did you mean "Europe/Berlin"?'),
    ("policy: p\ntimezone: America\n", 2, "no IANA time zone"),
    ("policy: p\ntimezone: ../../etc/passwd\n", 2, "no IANA time zone"),
    ("policy: p\ntimezone: '+01:00'\n", 2, "no IANA time zone"),
    ("policy: p\nold_lines: {newest_too: true}\n", 2, '"after" is missing'),
    ("policy: p\nfloors: {min_restorable: 0}\n", 2, '"min_restorable" must be from 1'),
    ("policy: p\nfloors: {min_durable_copies: 0}\n", 2, '"min_durable_copies" must be from 1'),
    ("policy: p\nfloors: {min_durable_copies: 4}\n", 2, "and 3 tiers are configured"),
    ("policy: p\nfloors: {min_age: -1h}\n", 2, '"min_age" must be a length of time'),
    (CAPACITY + "{}\n", 4, 'nothing limits tier "nvme"'),
    (CAPACITY + "{yields: [copies]}\n", 4, 'nothing limits tier "nvme"'),
    (CAPACITY + "{high: 90%}\n", 4, '"high" needs "low"'),
    (CAPACITY + "{low: 90%}\n", 4, '"low" needs "high"'),
    (CAPACITY + "{high: 80%, low: 80%}\n", 4, '"low" (80%) must lie below "high" (80%)'),
    (CAPACITY + "{high: 90%,\n    low: 95%}\n", 5, '"low" (95%) must lie below "high" (90%)'),
    (CAPACITY + "{high: 101%, low: 1%}\n", 4, '"high" must be from 1% to 100%'),
    (CAPACITY + "{high: 0.9, low: 0.8}\n", 4, "must be a whole number of percent"),
    (CAPACITY + "{quota: 0}\n", 4, "out of range"),
    (CAPACITY + "{quota: 5Tb}\n", 4, "in bits"),
    (CAPACITY + "{files: 0}\n", 4, '"files" must be from 1'),
    (CAPACITY + "{reserve_saves: 0}\n", 4, '"reserve_saves" must be from 1'),
    (CAPACITY + "{quota: 1TB, yields: }\n", 4, '"yields" says nothing'),
    (CAPACITY + "{quota: 1TB, yields: [best]}\n", 4, '"best"; known are copies'),
    (CAPACITY + "{quota: 1TB, yields: [copies,\n    copies]}\n", 5, '"copies" is named twice'),
    (CAPACITY + "{quota: 1TB, yields: [weekly]}\n", 4, 'is kept by a rule "weekly"'),
    (CAPACITY + "{quota: 1TB, yields: [within]}\n", 4, 'is kept by a rule "within"'),
    ("policy: p\ncapacity: {nvm: {quota: 1TB}}\n", 2, 'did you mean "nvme"?'),
    ("policy: p\nsafety: {max_count: 0}\n", 2, '"max_count" must be from 1'),
    ("policy: p\nsafety: {max_fraction: 0%}\n", 2, '"max_fraction" must be from 1%'),
    ("policy: p\nsafety: {max_fraction: 101%}\n", 2, '"max_fraction" must be from 1%'),
    ("policy: p\nsafety: {grace: -1h}\n", 2, '"grace" must be a length of time'),
    ("policy: p\nlifecycle: {dead_after: 0s}\n", 2, '"dead_after" must be from 1s'),
    ("policy: p\nlifecycle: {retire_dead_after: 13d}\n", 2, 'is shorter than "dead_after" (14d)'),
    ("policy: p\nlifecycle: {retired: {after: 1d}}\n", 2, '"keep" is missing'),
    ("policy: p\nflush:\n", 2, '"flush" says nothing'),
    ("policy: p\nflush:\n  - {from: nvme, to: sharde, every: 1}\n", 3, 'did you mean "shared"?'),
    ("policy: p\nflush:\n  - {from: nvme, to: s3}\n", 3, "needs a rule that chooses"),
    (
        "policy: p\nflush:\n  - {from: nvme, to: s3, last: 1}\n  - {from: s3, to: nvme, last: 1}\n",
        4,
        "links go in a circle",
    ),
    ("policy: p\nseal: {}\n", 2, '"settle" is missing'),
    ("policy: p\nverify: {max_age: 0s}\n", 2, '"max_age" must be from 1s'),
    ("policy: p\nteam: a\nteams: [b]\n", 3, '"team" (line 2) and "teams" are one thing'),
    ("policy: p\nteam: a/b\n", 2, '"a/b" is no team'),
    ("policy: p\nteams: []\n", 2, '"teams" names none'),
    ("policy: p\ntags: [a b]\n", 2, '"a b" is no tag'),
    ("policy: p\ntags: [a, '!a']\n", 2, 'no run has and has not the tag "a"'),
    ("policy: p\nruns: []\n", 2, '"runs" names none'),
    ("policy: p\nruns: ['a', 'a']\n", 2, '"a" is named twice'),
    ("policy: p\nruns: 7\n", 2, '"runs" must be text'),
    ("policy: p\nruns: lm/a/*\n", 2, '"lm/a/*" matches no run'),
    ("policy: p\nruns: /lm/*\n", 2, "matches no run"),
    ("policy: p\nruns:\n  - ok\n  - lm/\n", 4, '"lm/" matches no run'),
    ("policy: p\nteam: lm\nruns: vision/*\n", 3, '"vision/*" matches no run of "lm"'),
    ("policy: p\nteam: lm\nruns: llama\n", 3, '"llama" matches no run of "lm"'),
    ("policy: p\nruns: ['!x']\n", 2, '"runs" selects no run'),
    ("policy: p\nruns: ['x*', '!x*']\n", 2, "taken in and left out at once"),
    ("policy: p\nruns: [!x ]\n", 2, "tags (!) are not allowed"),
    ("policy: &a p\n", 1, "anchors and aliases"),
    ("policy: [\n", 2, "not YAML"),
]


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize(("text", "line", "says"), REFUSED)
def test_a_mistake_is_refused_with_its_file_and_line(text, line, says):
    message = refusal(text).message
    assert message.startswith(f"p.yaml:{line}: "), message
    assert says in message


@pytest.mark.parametrize(
    "rules",
    [
        "{daily: 7, within: 30d}",
        "{weekly: all, monthly: all}",
        "{hourly: 24, daily: all}",
        "{last: 3, first: 3, daily: 7, weekly: 4}",
        "{every_steps: 10, steps: [20, 25]}",
        "{best: [{metric: x, mode: min}, {metric: x, mode: max}]}",
        "{best: [{metric: x, mode: min}, {metric: x, mode: min, ties: oldest}]}",
        "{best: [{metric: x, mode: min, count: 3}, {metric: x, mode: min, nan: worst}]}",
        "{best: [{metric: x, mode: min, count: 3}, {metric: x, mode: min, missing_for: 1d}]}",
        "{last: all}",
        "{last: all, recorded_best: false}",
    ],
)
def test_rules_that_may_keep_something_of_their_own_are_accepted(rules):
    assert read(f"policy: p\nkeep: {{nvme: {rules}}}\n").keep


def test_rules_of_weights_and_of_retired_runs_may_yield_as_well():
    limit = "capacity: {s3: {quota: 1TB, yields: [daily, every]}}\n"
    retired = "lifecycle: {retired: {keep: {every: 6h}}}\n"
    text = f"policy: p\nweights: {{s3: {{daily: 1}}}}\n{retired}{limit}"
    assert read(text).capacity["s3"].yields == (Yields.DAILY, Yields.EVERY)


def test_a_store_cannot_hold_by_hard_links():
    text = "policy: p\nflush:\n  - {from: s3, to: shared, every: 1, hold: true}\n"
    assert "a store without any" in refusal(text, stores={"s3"}).message


def test_where_no_tier_is_configured_a_policy_cannot_name_one():
    message = refusal("policy: p\nkeep: {nvme: {last: 1}}\n", tiers=()).message
    assert "ckptgov.yaml has none" in message


def test_without_a_time_zone_database_the_package_is_named(monkeypatch):
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    error = refusal("policy: p\ntimezone: Mars/Base\n")
    assert "no time zone database" in error.message
    assert "tzdata" in (error.hint or "")


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_reads_well(name):
    text = (POLICIES / f"{name}.yaml").read_text()
    policy = read(text, stores={"s3"})
    assert policy.name == name
    assert text.count("#") >= 10


def test_the_presets_are_all_there_is_beside_the_starter():
    assert {path.stem for path in POLICIES.glob("*.yaml")} == {*PRESETS, "starter"}
