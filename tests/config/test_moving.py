"""What moves where and how fast, as ``ckptgov.yaml`` says it."""

from __future__ import annotations

import pytest
import yaml

from ckptgov.config import document
from ckptgov.config.load import load_settings
from ckptgov.errors import ConfigError
from ckptgov.model.pacing import Budget
from ckptgov.model.settings import Link, NodeSettings, Proof, Scope, Settings, TierSettings

WHOLE = """
tiers:
  - name: nvme
    url: /mnt/nvme
    scope: node
    node: node7
    budget: {read: 2GB/s}
  - {name: lustre, url: /lustre/ckpt, budget: {write: 200MB/s, flows: 4}, quota: 50TB}
  - name: s3
    url: s3://bucket/prefix/
    endpoint: http://Store:8333/
    budget:
      read: 1.5GiB/s
      write: 1000000
      requests: 500/s
    proof: arrival-checksum
  - {name: mem, url: "memory://there/x", proof: none}
links:
  - {from: nvme, to: lustre, every: 1, hold: true}
  - {from: lustre, to: s3, every: 6h, every_steps: 1000, last: 2, pins: [gold, "best of all"]}
nodes:
  - {name: node7, budget: {read: 1GB/s, requests: 20}}
fallback: 5%
stall: 3m
"""


@pytest.fixture(params=["c", "python"])
def either_parser(request, monkeypatch):
    loader = yaml.SafeLoader if request.param == "python" else yaml.CSafeLoader
    monkeypatch.setattr(document, "_LOADER", loader)


def load(tmp_path, text: str) -> Settings:
    (tmp_path / "ckptgov.yaml").write_text(text)
    return load_settings(str(tmp_path))


@pytest.mark.usefixtures("either_parser")
def test_every_setting_of_movement_is_read(tmp_path):
    assert load(tmp_path, WHOLE) == Settings(
        home=str(tmp_path),
        tiers=(
            TierSettings(
                name="nvme",
                root="/mnt/nvme",
                scope=Scope.NODE,
                node="node7",
                budget=Budget(read_bytes_per_s=2 * 10**9),
            ),
            TierSettings(
                name="lustre",
                root="/lustre/ckpt",
                budget=Budget(write_bytes_per_s=2 * 10**8, flows=4),
                quota_bytes=50 * 10**12,
            ),
            TierSettings(
                name="s3",
                root="s3://bucket/prefix",
                endpoint="http://store:8333",
                budget=Budget(
                    read_bytes_per_s=3 * 2**29, write_bytes_per_s=10**6, requests_per_s=500
                ),
                proof=Proof.ARRIVAL_CHECKSUM,
            ),
            TierSettings(name="mem", root="memory://there/x", proof=Proof.NONE),
        ),
        links=(
            Link(source="nvme", target="lustre", every=1, hold=True),
            Link(
                source="lustre",
                target="s3",
                every_s=21600.0,
                every_steps=1000,
                last=2,
                pins=("gold", "best of all"),
            ),
        ),
        nodes=(
            NodeSettings(name="node7", budget=Budget(read_bytes_per_s=10**9, requests_per_s=20)),
        ),
        fallback_percent=5,
        stall_s=180.0,
    )


def test_links_may_stand_before_the_tiers_they_name(tmp_path):
    text = "links: [{from: a, to: b, last: 1}]\ntiers: [{name: a, url: /a}, {name: b, url: /b}]\n"
    assert load(tmp_path, text).links == (Link(source="a", target="b", last=1),)


A = "tiers:\n  - {name: a, url: /a}\n  - {name: b, url: /b}\n  - {name: c, url: 's3://bbb'}\n"
BUDGET = "tiers:\n  - name: a\n    url: /a\n    budget: "
TIER = "tiers:\n  - name: a\n    url: 's3://bucket'\n    "
REFUSED = [
    (BUDGET + "{reed: 1GB/s}\n", 4, 'did you mean "read"?', ""),
    (BUDGET + "2GB/s\n", 4, '"budget" must be a table', ""),
    (BUDGET + "{read: 2GB}\n", 4, "a rate is wanted", "write 2GB/s"),
    (BUDGET + "{read: 200Mb/s}\n", 4, "in bits", "8 bits are 1 byte"),
    (BUDGET + "{read: 1Gbit/s}\n", 4, "in bits", "8 bits are 1 byte"),
    (BUDGET + "{read: 1gib/s}\n", 4, 'unknown unit "gib"', 'did you mean "GiB"?'),
    (BUDGET + "{read: 10KB/s}\n", 4, 'unknown unit "KB"', 'did you mean "kB"?'),
    (BUDGET + "{read: fast}\n", 4, "no number with a unit", "write it like 200MB/s"),
    (BUDGET + "{read: -1}\n", 4, "no number with a unit", ""),
    (BUDGET + "{read: 0}\n", 4, "out of range", ""),
    (BUDGET + "{read: 1.5}\n", 4, "no whole number of bytes", ""),
    (BUDGET + "{read: 99999PB/s}\n", 4, "out of range", ""),
    (BUDGET + "{read: [1]}\n", 4, '"read" must be an amount, not a list', ""),
    (BUDGET + "{read: }\n", 4, '"read" must be an amount, not nothing', ""),
    (BUDGET + "{requests: 5/m}\n", 4, "no number of calls per second", "500/s"),
    (BUDGET + "{requests: 0}\n", 4, "no number of calls per second", ""),
    (BUDGET + "{flows: 0}\n", 4, "from 1 to 100000", ""),
    (BUDGET + "{flows: many}\n", 4, "must be a whole number", ""),
    (TIER + "quota: 5TB/s\n", 4, "an amount is wanted", '"/s"'),
    (TIER + "quota: 5Tbit\n", 4, "in bits", ""),
    (TIER + "proof: readbak\n", 4, 'did you mean "readback"?', ""),
    (TIER + "endpoint: store:8333\n", 4, "no http:// or https://", "http://host:port"),
    (TIER + "endpoint: 'http://k:s@store'\n", 4, "holds credentials", ""),
    (TIER + "endpoint: 'http://store/?x'\n", 4, "no address of a host", ""),
    (TIER + "scope: node\n    node: n\n", 2, "goes only with a path", ""),
    (
        "tiers:\n  - name: a\n    url: /a\n    endpoint: 'http://store'\n",
        4,
        "goes only with an s3:// URL",
        "",
    ),
    (
        "tiers:\n  - name: a\n    url: /a\n    proof: arrival-checksum\n",
        4,
        "needs a store",
        "readback",
    ),
    (A + "links:\n  - {from: a, to: b}\n", 6, "needs a rule that chooses", "every: 1"),
    (A + "links:\n  - {form: a, to: b, every: 1}\n", 6, 'did you mean "from"?', ""),
    (A + "links:\n  - {from: a, every: 1}\n", 6, '"to" is missing', ""),
    (A + "links:\n  - {from: a, to: d, every: 1}\n", 6, '"to" is "d"; known are a, b, c', ""),
    (A + "links:\n  - {from: a, to: a, every: 1}\n", 6, "to itself", ""),
    (A + "links:\n  - {from: a, to: b, every: 0}\n", 6, "from 1 to 1000000", ""),
    (A + "links:\n  - {from: a, to: b, every: often}\n", 6, "a length of time", ""),
    (A + "links:\n  - {from: a, to: b, every_steps: 1h}\n", 6, "must be a whole number", ""),
    (A + "links:\n  - {from: a, to: b, last: 0}\n", 6, "from 1 to", ""),
    (A + "links:\n  - {from: a, to: b, pins: []}\n", 6, "names none", ""),
    (A + "links:\n  - {from: a, to: b, pins: [x, x]}\n", 6, "named twice", ""),
    (A + "links:\n  - {from: c, to: b, every: 1, hold: true}\n", 6, "hard links", ""),
    (
        A + "links:\n  - {from: a, to: b, every: 1}\n  - {from: a, to: b, last: 1}\n",
        7,
        "declared twice",
        "several rules",
    ),
    (
        A + "links:\n  - {from: a, to: b, every: 1}\n  - {from: b, to: c, last: 1}\n"
        "  - {from: c, to: a, last: 1}\n",
        8,
        "in a circle: c -> a -> b -> c",
        "",
    ),
    ("links: [{from: a, to: b, every: 1}]\n", 1, "no tier is configured", ""),
    ("nodes:\n  - {name: n}\n", 2, '"budget" is missing', ""),
    ("nodes:\n  - {name: n, budget: {}}\n  - {name: n, budget: {}}\n", 3, "declared twice", ""),
    ("fallback: 10\n", 1, "number of percent", "10%"),
    ("fallback: 0%\n", 1, "from 1% to 90%", ""),
    ("fallback: 1.5%\n", 1, "number of percent", ""),
    ("stall: 0s\n", 1, '"stall" must be from 1s', ""),
]


@pytest.mark.parametrize(("text", "line", "says", "hint"), REFUSED)
def test_a_mistake_is_refused_with_its_line_and_a_way_out(tmp_path, text, line, says, hint):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path}/ckptgov.yaml:{line}: ")
    assert says in caught.value.message
    assert hint in (caught.value.hint or "")


def test_links_that_meet_again_are_no_circle(tmp_path):
    names = [f"t{number}" for number in range(40)]
    tiers = "".join(f"  - {{name: {name}, url: /{name}}}\n" for name in names)
    pairs = [(i, j) for i in range(40) for j in (i + 1, i + 2) if j < 40]
    links = "".join(f"  - {{from: t{i}, to: t{j}, every: 1}}\n" for i, j in pairs)
    assert len(load(tmp_path, f"tiers:\n{tiers}links:\n{links}").links) == len(pairs)


def test_buckets_of_two_stores_may_be_called_alike(tmp_path):
    text = (
        "tiers:\n  - {name: a, url: 's3://bucket', endpoint: 'http://one'}\n"
        "  - {name: b, url: 's3://bucket/x', endpoint: 'http://two'}\n"
    )
    assert len(load(tmp_path, text).tiers) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("url: 's3://bucket/a'", "url: 's3://bucket/a/b'"),
        ("url: 's3://bucket/a/b'", "url: 's3://bucket'"),
        ("url: 's3://bucket/a'", "url: 'S3://bucket/a/'"),
        (
            "url: 's3://bucket', endpoint: 'http://store'",
            "url: 's3://bucket/x', endpoint: 'HTTP://Store:80/'",
        ),
        ("url: 'memory://a/b'", "url: 'memory://a'"),
    ],
)
def test_a_url_inside_or_around_another_is_refused(tmp_path, first, second):
    with pytest.raises(ConfigError, match="inside or around"):
        load(tmp_path, f"tiers:\n  - {{name: a, {first}}}\n  - {{name: b, {second}}}\n")
