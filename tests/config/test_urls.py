"""Which URLs lead to a tier, and how they are spelt."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ckptgov.config.urls import is_url, normal_endpoint, normal_url
from ckptgov.errors import UsageError


@pytest.mark.parametrize(
    ("url", "spelt"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("S3://my.bucket-7/a/b_c/", "s3://my.bucket-7/a/b_c"),
        ("s3://bucket/a=1/b~c", "s3://bucket/a=1/b~c"),
        ("memory://x", "memory://x"),
        ("gs://bucket/Prefix//", "gs://bucket/Prefix"),
        ("ftp://host:21/dir", "ftp://host:21/dir"),
        ("abfs://container@account.dfs.core.windows.net/p", None),
        ("sftp://user@host/dir", None),
        ("hdfs:///dir/x", None),
    ],
)
def test_a_url_has_one_spelling(url, spelt):
    assert normal_url(url) == (spelt or url)
    assert is_url(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://", "names nothing"),
        ("s3:///", "names nothing"),
        ("s3://ab", "no possible bucket"),
        ("s3:///key", "no possible bucket"),
        ("s3://Bucket", "no possible bucket"),
        ("s3://-bucket", "no possible bucket"),
        ("s3://buck..et", "no possible bucket"),
        ("s3://buck_et", "no possible bucket"),
        ("s3://" + "b" * 64, "no possible bucket"),
        ("s3://bucket:9000/a", "no possible bucket"),
        ("s3://bucket/a/../b", '".."'),
        ("s3://bucket/./b", '".."'),
        ("s3://bucket//a", "empty"),
        ("s3://bucket/a//b", "empty"),
        ("s3://bucket/a?x=1", '"?"'),
        ("s3://bucket/a#b", '"#"'),
        ("s3://bucket/a%20b", "escaped only"),
        ("s3://bucket/a+b", "escaped only"),
        ("s3://bucket/a b", "a blank"),
        ("s3://bucket/a\nb", "a blank"),
        ("s3://bucket/" + "a" * 600, "longer than"),
        ("s3://key:secret@bucket/a", "credentials"),
        ("s3://key@bucket/a", "credentials"),
        ("gs://user:secret@bucket/a", "credentials"),
        ("ftp://user:secret@host/a", "credentials"),
        ("ftp://user:sec/ret@host/a", "credentials"),
        ("abfs://container:secret@account/a", "credentials"),
        ("memory://a/../b", '".."'),
        ("memory://", "names nothing"),
        ("https://store:9000/bucket", "leads to no tier"),
        ("local:///a", "leads to no tier"),
        ("s3a://bucket/a", "leads to no tier"),
    ],
)
def test_an_impossible_url_is_refused_and_not_repeated(url, says):
    with pytest.raises(UsageError) as caught:
        normal_url(url)
    assert says in caught.value.message
    told = f"{caught.value.message} {caught.value.hint}"
    assert "secret" not in told
    assert "sec/ret" not in told


def test_where_names_are_given_they_may_be_escaped_as_keys_are():
    assert normal_url("s3://bucket/a%20b", escapes=True) == "s3://bucket/a%20b"
    with pytest.raises(UsageError, match="escaped only"):
        normal_url("s3://bucket/a%2Fb", escapes=True)


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("http://Store:8333/", "http://store:8333"),
        ("https://s3.example.org:443", "https://s3.example.org"),
        ("http://[::1]:9000", "http://[::1]:9000"),
        ("http://proxy/s3/", "http://proxy/s3"),
    ],
)
def test_an_endpoint_has_one_spelling(text, spelt):
    assert normal_endpoint(text) == spelt


@pytest.mark.parametrize(
    "text", ["store", "ftp://store", "http://", "http://u:secret@s", "http://s?q", "http://a b"]
)
def test_what_is_no_endpoint_is_refused_and_not_repeated(text):
    with pytest.raises(UsageError) as caught:
        normal_endpoint(text)
    assert "secret" not in f"{caught.value.message} {caught.value.hint}"


def test_urls_are_judged_without_the_yaml_parser():
    script = (
        "import sys; from ckptgov.config.urls import normal_url; from ckptgov.config import units; "
        "normal_url('s3://bucket/a'); sys.exit('yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
