from __future__ import annotations

import os
import subprocess
import sys

import pytest
import yaml

from ckptgov.config import document
from ckptgov.config.load import load_settings
from ckptgov.errors import ConfigError
from ckptgov.model.checkpoint import Expect
from ckptgov.model.settings import RunRule, Scope, Settings, TierSettings

WHOLE = r"""
# our cluster
tiers:
  - {name: lustre, url: /lustre/ckpt, scope: shared, ingest: true}
  - {name: nvme, url: /mnt/nvme, scope: node, node: node7, ingest: yes}
  - name: nvme
    url: "file:///mnt/nvme"
    scope: node
    node: node8
runs:
  - run: "team/llm-*"
    expect: {glob: "step_*/rank_*.pt", count: 4, marker: DONE, step: "step_(\\d+)"}
verify_max_age: 24h
clock_margin: 0s
save_window: 15m
settle: 45s
digest_threads: 2
step_over_limit: 0
"""


@pytest.fixture(params=["c", "python"])
def either_parser(request, monkeypatch):
    """PyYAML comes with and without libyaml; both must give the same lines."""
    loader = yaml.SafeLoader if request.param == "python" else yaml.CSafeLoader
    monkeypatch.setattr(document, "_LOADER", loader)


def load(tmp_path, text: str | bytes) -> Settings:
    raw = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "ckptgov.yaml").write_bytes(raw)
    return load_settings(str(tmp_path))


def refusal(tmp_path, text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code == 2
    return caught.value


def test_an_absent_file_means_the_defaults(tmp_path):
    assert load_settings(str(tmp_path)) == Settings(home=str(tmp_path))


def test_an_absent_home_means_the_defaults(tmp_path):
    home = str(tmp_path / "nowhere")
    assert load_settings(home) == Settings(home=home)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n", "tiers:\nruns:\n", "{}"])
def test_a_file_that_says_nothing_means_the_defaults(tmp_path, text):
    assert load(tmp_path, text) == Settings(home=str(tmp_path))


@pytest.mark.usefixtures("either_parser")
def test_every_setting_is_read(tmp_path):
    nvme = TierSettings(name="nvme", root="/mnt/nvme", scope=Scope.NODE, node="node7", ingest=True)
    expect = Expect(glob="step_*/rank_*.pt", count=4, marker="DONE", step=r"step_(\d+)")
    assert load(tmp_path, WHOLE) == Settings(
        home=str(tmp_path),
        tiers=(
            TierSettings(name="lustre", root="/lustre/ckpt", ingest=True),
            nvme,
            TierSettings(name="nvme", root="/mnt/nvme", scope=Scope.NODE, node="node8"),
        ),
        rules=(RunRule(run="team/llm-*", expect=expect),),
        verify_max_age_s=86400.0,
        clock_margin_s=0.0,
        save_window_s=900.0,
        settle_s=45.0,
        digest_threads=2,
        step_over_limit=0,
    )


def test_runs_may_be_tagged_without_a_rule_of_their_own(tmp_path):
    text = "runs:\n  - {run: 'lm/*', tags: [pretrain, big]}\n"
    assert load(tmp_path, text).rules == (RunRule(run="lm/*", tags=("pretrain", "big")),)


def test_policies_may_lie_elsewhere(tmp_path):
    assert load(tmp_path, "policies: /etc/ckptgov/policies/\n").policies_dir == (
        "/etc/ckptgov/policies"
    )


TIER = "tiers:\n  - {name: a, url: /a}\n"
RULE = "runs:\n  - run: x\n    expect: "
REFUSED = [
    ("tierz: []\n", 1, 'unknown key "tierz"; did you mean "tiers"?'),
    ("settle: 1s\ncolour: red\n", 2, 'unknown key "colour"; known are catalog, clock_margin'),
    ("settle: 1s\n\nsettle: 2s\n", 3, '"settle" is given twice (first on line 1)'),
    ("tiers:\n  - {name: a, url: /a,\n     nmae: b}\n", 3, 'did you mean "name"?'),
    (TIER + "  - {name: a, url: /b, url: /c}\n", 3, '"url" is given twice'),
    ("- a\n", 1, "must be a table (key: value), not a list"),
    ("just words\n", 1, "must be a table"),
    ("tiers: /a\n", 1, '"tiers" must be a list, not "/a"'),
    ("tiers: {name: a}\n", 1, '"tiers" must be a list, not a table'),
    ("tiers:\n  - a\n", 2, "must be a table"),
    ("tiers:\n  - name: 7\n    url: /a\n", 2, '"name" must be text, not "7"'),
    ("tiers:\n  - name: [a]\n    url: /a\n", 2, '"name" must be text, not a list'),
    ("tiers:\n  - name:\n    url: /a\n", 2, '"name" must be text, not nothing'),
    ("tiers:\n  - {name: '', url: /a}\n", 2, '"name" is empty'),
    ("tiers:\n  - {name: 'a b', url: /a}\n", 2, '"name" may hold letters'),
    ("tiers:\n  - {name: a}\n", 2, '"url" is missing'),
    ("tiers:\n  - {name: a, url: /a, ingest: 1}\n", 2, "must be true or false"),
    ("tiers:\n  - {name: a, url: /a, scope: nodes}\n", 2, 'did you mean "node"?'),
    ("tiers:\n  - {name: a, url: /a, scope: node}\n", 2, 'needs "node"'),
    ("tiers:\n  - {name: a, url: /a, node: n}\n", 2, 'goes only with "scope: node"'),
    ("tiers:\n  - {name: a, url: ckpt}\n", 2, "a relative path"),
    ("tiers:\n  - {name: a, url: ~/ckpt}\n", 2, "a relative path"),
    ("tiers:\n  - {name: a, url: /}\n", 2, "a directory of its own"),
    ("tiers:\n  - {name: a, url: /a/../b}\n", 2, '".."'),
    ("tiers:\n  - {name: a, url: 's3://key:secret@b/p'}\n", 2, "holds credentials"),
    ("tiers:\n  - {name: a, url: 'gs:b'}\n", 2, "neither a path nor a URL"),
    ("tiers:\n  - {name: a, url: 'file://host/a'}\n", 2, "file:///absolute/path"),
    ("tiers:\n  - {name: a, url: 'file:a'}\n", 2, "file:///absolute/path"),
    ("tiers:\n  - {name: a, url: 'file:///a?b'}\n", 2, "%3F"),
    ("tiers:\n  - {name: a, url: 'file:///a%00b'}\n", 2, "NUL"),
    ('tiers:\n  - {name: a, url: "/a\\0b"}\n', 2, "NUL"),
    (TIER + "  - {name: a, url: /b}\n", 3, 'tier "a" is declared twice'),
    (TIER + "  - {name: b, url: /a}\n", 3, "the same as, inside or around"),
    (TIER + "  - {name: b, url: /a//x/}\n", 3, "the same as, inside or around"),
    ("tiers:\n  - {name: a, url: /a/x}\n  - {name: b, url: /a}\n", 3, "inside or around"),
    (TIER + "  - {name: b, url: /a/n, scope: node, node: n}\n", 3, "inside or around"),
    (TIER + "  - {name: a, url: /n, scope: node, node: n}\n", 3, "both shared and for a node"),
    (
        "tiers:\n  - {name: a, url: /a, scope: node, node: n}\n"
        "  - {name: a, url: /b, scope: node, node: n}\n",
        3,
        'declared twice for node "n"',
    ),
    ("settle: 30\n", 1, '"settle" must be a length of time'),
    ("settle: 1.5h\n", 1, '"settle" must be a length of time'),
    ("settle: [30s]\n", 1, '"settle" must be a length of time'),
    ("settle: -1s\n", 1, '"settle" must be a length of time'),
    ("verify_max_age: 0s\n", 1, '"verify_max_age" must be from 1s'),
    ("settle: 999999999d\n", 1, '"settle" must be from 0s to 3650d'),
    ("digest_threads: 0\n", 1, "from 1 to 1024, not 0"),
    ("digest_threads: four\n", 1, "must be a whole number"),
    ("digest_threads: 010\n", 1, "must be a whole number"),
    ("digest_threads: 2.0\n", 1, "must be a whole number"),
    ("digest_threads: true\n", 1, "must be a whole number"),
    ("step_over_limit: 99999999999999999999\n", 1, "must be a whole number"),
    (RULE + "{count: 1}\n", 3, '"glob" is missing'),
    (RULE + "{glob: 'a'}\n", 3, "cannot tell a half-written checkpoint"),
    (RULE + "{glob: 'a', count: 0}\n", 3, "from 1 to 1000000"),
    (RULE + "{glob: '/a', count: 1}\n", 3, "below the run root"),
    (RULE + "{glob: 'a/../b', count: 1}\n", 3, "below the run root"),
    (RULE + "{glob: 'a', marker: 'x/y'}\n", 3, "a file name"),
    (RULE + "{glob: 'a', count: 1, step: '(a'}\n", 3, "not a regular expression"),
    (RULE + "{glob: 'a', count: 1, step: 'a'}\n", 3, "needs a group"),
    ("runs:\n  - run: x\n", 2, '"expect" is missing'),
    ("runs:\n  - {run: x, tags: [a b]}\n", 2, '"a b" is no tag'),
    ("runs:\n  - {run: x, tags: []}\n", 2, '"tags" names none'),
    ("runs:\n  - {run: x, tags: [a, a]}\n", 2, '"a" is named twice'),
    ("runs:\n  - {run: x, tags: ['!a']}\n", 2, '"!a" is no tag'),
    ("policies: policies.d\n", 1, '"policies" is "policies.d", no absolute path'),
    ("policies: /a/../b\n", 1, "no absolute path without"),
    ("policies: [/a]\n", 1, '"policies" must be text'),
    (
        "runs:\n  - {run: x, expect: {glob: a, count: 1}}\n"
        "  - {run: x, expect: {glob: b, count: 1}}\n",
        3,
        "would never apply",
    ),
    ("a: b\nx: [1\n", 3, "not YAML"),
    ("settle: 1s\n---\nsettle: 2s\n", 2, "not YAML"),
    ("settle: 1s\nx: \x01\n", 2, "a character YAML does not allow"),
    ("settle: !!python/name:os.system x\n", 1, "tags (!) are not allowed"),
    ("settle: 1s\nsave_window: !!str 1s\n", 2, "tags (!) are not allowed"),
    ("settle: &a 1s\n", 1, "anchors and aliases"),
    ("settle: *a\n", 1, ""),
    ("<<: {settle: 1s}\n", 1, 'unknown key "<<"'),
    ("? [a]\n: b\n", 1, "a key must be a word"),
    ("a: " + "[" * 50 + "]" * 50, 1, "nested deeper than 8"),
]


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize(("text", "line", "says"), REFUSED)
def test_a_mistake_is_refused_with_its_file_and_line(tmp_path, text, line, says):
    message = refusal(tmp_path, text).message
    assert message.startswith(f"{tmp_path}/ckptgov.yaml:{line}: ")
    assert says in message


def test_credentials_in_a_url_are_not_repeated(tmp_path):
    error = refusal(tmp_path, "tiers:\n  - {name: a, url: 's3://key:secret@b/p'}\n")
    assert "secret" not in f"{error.message} {error.hint}"


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("/a//b/./c/", "/a/b/c"),
        ("//a/b", "/a/b"),
        ("file:///a/b/", "/a/b"),
        ("FILE://localhost/a", "/a"),
        ("file:///a%20b/%FF", "/a b/\udcff"),
        ("/a/with:colon", "/a/with:colon"),
    ],
)
def test_a_root_is_written_plainly_or_as_a_file_url(tmp_path, url, root):
    assert load(tmp_path, f'tiers: [{{name: a, url: "{url}"}}]\n').tiers[0].root == root


def test_two_nodes_may_have_the_same_tier_at_the_same_root(tmp_path):
    settings = load(
        tmp_path,
        "tiers:\n"
        "  - {name: nvme, url: /nvme, scope: node, node: n1}\n"
        "  - {name: nvme, url: /nvme, scope: node, node: n2}\n",
    )
    assert [tier.node for tier in settings.tiers] == ["n1", "n2"]


def test_roots_that_only_begin_alike_are_not_inside_one_another(tmp_path):
    assert len(load(tmp_path, TIER + "  - {name: b, url: /ab}\n").tiers) == 2


def test_a_byte_order_mark_and_windows_line_ends_are_no_obstacle(tmp_path):
    assert load(tmp_path, b"\xef\xbb\xbfsettle: 1s\r\nsave_window: 2s\r\n").settle_s == 1.0


def test_bytes_that_are_not_utf_8_are_refused_with_their_line(tmp_path):
    assert f"{tmp_path}/ckptgov.yaml:2: not UTF-8" in refusal(tmp_path, b"a: b\nc: \xff\n").message


def test_a_huge_file_is_refused(tmp_path):
    assert "larger than" in refusal(tmp_path, "#" * (2**20 + 1)).message


def test_a_million_open_brackets_are_refused_without_a_crash(tmp_path):
    assert "nest" in refusal(tmp_path, "[" * 2**20).message


def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "ckptgov.yaml")
    with pytest.raises(ConfigError, match="not a regular file"):
        load_settings(str(tmp_path))


def test_a_directory_in_the_files_place_is_refused(tmp_path):
    (tmp_path / "ckptgov.yaml").mkdir()
    with pytest.raises(ConfigError, match="not a regular file"):
        load_settings(str(tmp_path))


def test_a_dangling_symlink_is_not_an_absent_file(tmp_path):
    (tmp_path / "ckptgov.yaml").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="symlink"):
        load_settings(str(tmp_path))


def test_a_file_below_a_file_is_refused(tmp_path):
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        load_settings(str(tmp_path / "home"))


def test_without_a_file_the_yaml_parser_is_not_loaded(tmp_path):
    script = (
        "import sys; from ckptgov.config.load import load_settings; "
        f"load_settings({str(tmp_path)!r}); sys.exit('yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
