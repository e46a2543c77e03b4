"""Several policies: where they lie, which runs they select, when they are in each other's way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckptgov.config.policies import load_policies, policy_for
from ckptgov.config.selecting import common_run, selects
from ckptgov.errors import ConfigError
from ckptgov.model.policy import Selector
from ckptgov.model.settings import Settings, TierSettings

POLICIES = Path(__file__).resolve().parents[2] / "policies"
PRESETS = ("default", "finetune", "long-pretrain", "scratch-tight")
TIERS = (
    TierSettings(name="nvme", root="/nvme"),
    TierSettings(name="shared", root="/shared"),
    TierSettings(name="s3", root="s3://bucket/ckpt"),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    return tmp_path


def settings(home: Path, **changed) -> Settings:
    return Settings(home=str(home), tiers=TIERS, **changed)


def write(home: Path, name: str, text: str) -> Path:
    path = home / "policies" / name
    path.write_text(text)
    return path


def refusal(home: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_policies(settings(home))
    return caught.value.message


def test_without_a_directory_there_are_no_policies(tmp_path):
    assert load_policies(settings(tmp_path)) == ()


def test_without_a_file_the_yaml_parser_is_not_loaded(tmp_path):
    code = (
        "import sys\n"
        "from ckptgov.config.policies import load_policies\n"
        "from ckptgov.model.settings import Settings\n"
        f"assert load_policies(Settings(home={str(tmp_path)!r})) == ()\n"
        "sys.exit('yaml' in sys.modules)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0


def test_policies_come_by_the_names_of_their_files(home):
    write(home, "b.yaml", "policy: one\nruns: one/*\n")
    write(home, "a.yaml", "policy: two\nruns: two/*\n")
    write(home, ".a.yaml.swp", "not: a policy\n")
    write(home, "notes.txt", "not a policy\n")
    found = load_policies(settings(home))
    assert [one.name for one in found] == ["two", "one"]
    assert found[0].file == str(home / "policies" / "a.yaml")


def test_a_directory_that_is_named_must_be_there(tmp_path):
    named = settings(tmp_path, policies_dir=str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match="elsewhere: the directory of policies cannot be read"):
        load_policies(named)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "p.yaml").write_text("policy: p\n")
    assert [one.name for one in load_policies(named)] == ["p"]


def test_a_changed_file_is_read_anew(home):
    path = write(home, "p.yaml", "policy: one\n")
    stamp = path.stat()
    assert load_policies(settings(home))[0].name == "one"
    path.write_text("policy: two\n")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert load_policies(settings(home))[0].name == "two"


def test_an_empty_file_is_a_mistake(home):
    write(home, "p.yaml", "")
    assert refusal(home).endswith("p.yaml:1: says nothing")


def test_a_file_that_would_be_passed_over_is_a_mistake(home):
    write(home, "p.yml", "policy: p\n")
    assert "p.yml:1: is not read" in refusal(home)


def test_one_wrong_policy_puts_none_in_force(home):
    write(home, "a.yaml", "policy: a\nruns: a/*\n")
    write(home, "b.yaml", "policy: b\nruns: b/*\nkeep: {lustre: {last: 1}}\n")
    assert 'b.yaml:3: no tier "lustre" is configured' in refusal(home)


def test_whoever_does_not_know_every_tier_takes_names_as_they_are(home):
    write(home, "b.yaml", "policy: b\nkeep: {lustre: {last: 1}}\n")
    (policy,) = load_policies(settings(home), knows_tiers=False)
    assert "lustre" in policy.keep


def test_a_name_is_given_once(home):
    write(home, "a.yaml", "policy: p\nruns: a/*\n")
    write(home, "b.yaml", "# same\npolicy: p\nruns: b/*\n")
    assert "b.yaml:2: the name p is taken by " in refusal(home)
    assert "a.yaml:1" in refusal(home)


def test_policies_that_surely_select_one_run_are_refused_naming_both_files(home):
    write(home, "a.yaml", "policy: a\n")
    write(home, "b.yaml", "policy: b\nkeep: {}\nruns: lm/*\n")
    message = refusal(home)
    assert "b.yaml:3: b and a (" in message
    assert "a.yaml:1) both select runs, such as lm/x" in message


def test_the_presets_can_be_in_force_together(home):
    for name in PRESETS:
        shutil.copy(POLICIES / f"{name}.yaml", home / "policies")
    policies = load_policies(settings(home))
    chosen = {
        run: policy_for(policies, run, ()).name
        for run in ("lm/pretrain-7b", "lm/sft-7b", "scratch/pretrain-1", "scratch/a", "lm/x", "y")
    }
    assert chosen == {
        "lm/pretrain-7b": "long-pretrain",
        "lm/sft-7b": "finetune",
        "scratch/pretrain-1": "scratch-tight",
        "scratch/a": "scratch-tight",
        "lm/x": "default",
        "y": "default",
    }


def test_a_run_that_two_policies_select_is_refused_naming_both_files(home):
    write(home, "a.yaml", "policy: a\nruns: lm*\n")
    write(home, "b.yaml", "policy: b\nruns: '*7b'\n")
    policies = load_policies(settings(home))
    assert policy_for(policies, "lm/13b", ()).name == "a"
    assert policy_for(policies, "vision/13b", ()) is None
    with pytest.raises(ConfigError) as caught:
        policy_for(policies, "lm/7b", ())
    assert "run lm/7b is selected by two policies" in caught.value.message
    assert "a.yaml" in caught.value.message
    assert "b.yaml" in caught.value.message


@pytest.mark.parametrize(
    ("selector", "run", "tags", "expected"),
    [
        (Selector(), "x", (), True),
        (Selector(), "lm/x", (), True),
        (Selector(runs=("lm/*",)), "lm/x", (), True),
        (Selector(runs=("lm/*",)), "lmx", (), False),
        (Selector(runs=("LM/*",)), "lm/x", (), False),
        (Selector(runs=("a", "b")), "b", (), True),
        (Selector(runs=("*", "!lm/*")), "lm/x", (), False),
        (Selector(runs=("*", "!lm/*")), "vision/x", (), True),
        (Selector(runs=("step-[0-9]",)), "step-7", (), True),
        (Selector(teams=("lm",)), "lm/x", (), True),
        (Selector(teams=("lm",)), "lm", (), False),
        (Selector(teams=("lm",)), "vision/x", (), False),
        (Selector(teams=("lm", "vision")), "vision/x", (), True),
        (Selector(tags=("a",)), "x", (), False),
        (Selector(tags=("a",)), "x", ("a", "b"), True),
        (Selector(tags=("a", "b")), "x", ("a",), False),
        (Selector(tags=("!a",)), "x", ("b",), True),
        (Selector(tags=("!a",)), "x", ("a",), False),
    ],
)
def test_a_selector_takes_what_it_says(selector, run, tags, expected):
    assert selects(selector, run, tags) is expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Selector(), Selector()),
        (Selector(), Selector(runs=("lm/*",))),
        (Selector(runs=("lm/*",)), Selector(runs=("lm/llama-*",))),
        (Selector(runs=("a", "lm/x")), Selector(runs=("lm/?",))),
        (Selector(teams=("lm",)), Selector(runs=("lm/*",))),
        (Selector(teams=("lm",)), Selector(teams=("lm", "vision"))),
        (Selector(teams=("lm",)), Selector(runs=("*-7b",))),
        (Selector(tags=("a",)), Selector()),
        (Selector(tags=("a",)), Selector(tags=("a", "b"))),
        (Selector(runs=("*", "!lm/*")), Selector(runs=("*", "!vision/*"))),
        (Selector(runs=("x-[ab]",)), Selector(runs=("x-[!c]",))),
    ],
)
def test_policies_that_surely_select_one_run_are_found_out(one, other):
    for first, second in ((one, other), (other, one)):
        run = common_run(first, second)
        assert run is not None
        tags = set(one.tags) | set(other.tags)
        assert selects(one, run, tags)
        assert selects(other, run, tags)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Selector(runs=("lm/*",)), Selector(runs=("vision/*",))),
        (Selector(teams=("lm",)), Selector(teams=("vision",))),
        (Selector(teams=("lm",)), Selector(runs=("vision/*",))),
        (Selector(tags=("a",)), Selector(tags=("b",))),
        (Selector(tags=("a",)), Selector(tags=("!a",))),
        (Selector(runs=("*", "!lm/*")), Selector(runs=("lm/*",))),
        (Selector(runs=("*", "!*/pretrain-*")), Selector(runs=("*/pretrain-*",))),
        (Selector(runs=("lm*",)), Selector(runs=("*7b",))),
        (Selector(runs=("x-[ab]",)), Selector(runs=("x-c",))),
    ],
)
def test_policies_that_need_not_share_a_run_are_let_be(one, other):
    assert common_run(one, other) is None
    assert common_run(other, one) is None
