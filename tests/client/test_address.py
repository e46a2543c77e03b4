"""Where the service is, and what may be used as its token."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptgov.client.address import Replica, address_from, is_named, is_run_name
from ckptgov.errors import ConfigError


def replicas(text: str) -> tuple[Replica, ...]:
    return address_from({"CKPTGOV_URL": text}).replicas


def test_several_replicas_with_a_prefix() -> None:
    assert replicas("http://a:8270, https://b/ckptgov/") == (
        Replica(is_tls=False, host="a", port=8270),
        Replica(is_tls=True, host="b", port=443, prefix="/ckptgov"),
    )


def test_an_address_of_version_six_is_written_with_brackets() -> None:
    assert str(replicas("http://[::1]:8270")[0]) == "http://[::1]:8270"


@pytest.mark.parametrize(
    "text",
    [
        "a:8270",
        "ftp://a",
        "http://",
        "http://a:99999",
        "http://a/?x=1",
        "http://a b",
        "http://[::1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="CKPTGOV_URL"):
        replicas(text)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as told:
        replicas("http://me:secret@a:8270")
    assert "secret" not in told.value.message


def test_an_empty_variable_names_no_service() -> None:
    assert not is_named({"CKPTGOV_URL": " "})
    assert is_named({"CKPTGOV_URL": "http://a"})


def token(**environ: str) -> str | None:
    return address_from({"CKPTGOV_URL": "http://a", **environ}).token


def written(tmp_path: Path, text: str, mode: int = 0o600) -> str:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_token_is_read_from_a_file_of_ones_own(tmp_path: Path) -> None:
    assert token(CKPTGOV_TOKEN_FILE=written(tmp_path, "ckptgov_a_b\n")) == "ckptgov_a_b"


def test_the_variable_wins_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "of-file")
    assert token(CKPTGOV_TOKEN="of-variable", CKPTGOV_TOKEN_FILE=path) == "of-variable"


def test_a_token_file_that_everyone_reads_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "x", mode=0o644)
    with pytest.raises(ConfigError, match="open to everyone") as told:
        token(CKPTGOV_TOKEN_FILE=path)
    assert told.value.hint == f"chmod 600 {path}"


@pytest.mark.parametrize("text", ["", "two words", "line\nInjected: header", "ü", "x" * 5000])
def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        token(CKPTGOV_TOKEN_FILE=written(tmp_path, text))


def test_a_token_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: the token cannot be read"):
        token(CKPTGOV_TOKEN_FILE=str(tmp_path / "nowhere"))


@pytest.mark.parametrize("target", ["/a/b", "./a", "../a", "~/a", "s3://b/a"])
def test_paths_and_urls_are_no_names_of_runs(target: str) -> None:
    assert not is_run_name(target)


def test_a_word_with_a_slash_is_the_directory_where_there_is_one(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_run_name("red/llm")
    (tmp_path / "red" / "llm").mkdir(parents=True)
    assert not is_run_name("red/llm")
    assert is_run_name("red")
