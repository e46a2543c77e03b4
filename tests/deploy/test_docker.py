"""Image and compose file: what they name is there, and what they start is ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from deploy_files import DEPLOY, documents

DOCKER = DEPLOY / "docker"
ROOT = DEPLOY.parent
(COMPOSE,) = documents(DOCKER / "compose.yaml")
MADE_BY_HAND = {"./prometheus.token"}


def test_what_is_mounted_is_there() -> None:
    named = {
        mount.split(":")[0]
        for service in COMPOSE["services"].values()
        for mount in service.get("volumes", [])
    }
    named |= {secret["file"] for secret in COMPOSE["secrets"].values()}
    for name in named - MADE_BY_HAND:
        if name.startswith("."):
            assert (DOCKER / name).exists(), name
        else:
            assert name in COMPOSE["volumes"], name


def test_services_wait_for_services_that_can_be_waited_for() -> None:
    for service in COMPOSE["services"].values():
        for name in service.get("depends_on", []):
            waited = COMPOSE["services"][name]
            needs = isinstance(service["depends_on"], dict)
            assert not needs or "healthcheck" in waited


def test_two_replicas_share_one_catalog_and_stand_behind_the_balancer() -> None:
    replicas = [name for name in COMPOSE["services"] if name.startswith("service-")]
    told = {COMPOSE["services"][name]["environment"]["CKPTGOV_CATALOG"] for name in replicas}
    assert (len(replicas), len(told)) == (2, 1)
    balanced = re.findall(r"server \w+ ([\w-]+):8270", (DOCKER / "haproxy.cfg").read_text())
    assert balanced == replicas


def test_every_variable_has_an_example() -> None:
    text = (DOCKER / "compose.yaml").read_text()
    known = re.findall(r"^(\w+)=", (DOCKER / "env.example").read_text(), re.MULTILINE)
    assert set(re.findall(r"\$\{(\w+)", text)) == set(known)


def test_no_password_is_written_down() -> None:
    assert "change-me" in json.dumps(json.loads((DOCKER / "s3.json").read_text()))
    values = re.findall(r"^\w+=(.*)$", (DOCKER / "env.example").read_text(), re.MULTILINE)
    assert set(values) == {""}


def test_the_image_is_built_from_files_that_are_there_and_runs_as_nobody_special() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
    assert re.search(r"^USER 8270:8270$", text, re.MULTILINE)
    kept = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    for name in " ".join(copied).split():
        assert f"!{name}" in kept


def test_docker_takes_the_compose_file(tmp_path: Path) -> None:
    compose = ["docker", "compose"]
    has_compose = shutil.which("docker") is not None and (
        subprocess.run([*compose, "version"], capture_output=True).returncode == 0
    )
    if not has_compose:
        pytest.skip("docker compose is not installed")
    environ = {"POSTGRES_PASSWORD": "p", "S3_ACCESS_KEY": "a", "S3_SECRET_KEY": "s"}
    (tmp_path / "env").write_text("".join(f"{key}={value}\n" for key, value in environ.items()))
    done = subprocess.run(
        [
            *(*compose, "-f", str(DOCKER / "compose.yaml")),
            *("--env-file", str(tmp_path / "env"), "config", "--quiet"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
