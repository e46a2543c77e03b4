"""The manifests are what Kubernetes takes, and name only what is there."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
from deploy_files import DEPLOY, documents, pod_specs

BASE = DEPLOY / "kubernetes/base"
BASE_FILES = [one for one in sorted(BASE.glob("*.yaml")) if one.name != "kustomization.yaml"]
PLAIN = sorted(
    path
    for folder in ("kubernetes/base", "kubernetes/overlays/example", "kubernetes")
    for path in (DEPLOY / folder).glob("*.yaml")
    if path.name != "kustomization.yaml"
)
LAUNCHERS = sorted((DEPLOY / "launchers").glob("*.yaml"))
VERSION = "1.31"


def of_base() -> list[dict[str, Any]]:
    return [one for path in BASE_FILES for one in documents(path)]


@pytest.mark.parametrize("path", [*PLAIN, *LAUNCHERS], ids=lambda path: path.name)
def test_manifests_validate(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        validate = pytest.importorskip("kubernetes_validate", reason="is not installed")
        for one in documents(path):
            if one["apiVersion"].split("/")[0].endswith(("jobset.x-k8s.io", "volcano.sh")):
                continue  # kinds of others: their pods are checked below
            validate.validate(one, VERSION, strict=True)


@pytest.mark.parametrize("path", LAUNCHERS, ids=lambda path: path.name)
def test_pods_of_launchers_validate(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        validate = pytest.importorskip("kubernetes_validate", reason="is not installed")
        specs = [spec for one in documents(path) for spec in pod_specs(one)]
        assert specs
        for spec in specs:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
            validate.validate(pod, VERSION, strict=True)


@pytest.mark.parametrize("folder", [BASE, DEPLOY / "kubernetes/overlays/example"])
def test_kustomizations_name_files_that_are_there(folder: Path) -> None:
    (one,) = documents(folder / "kustomization.yaml")
    named = [*one["resources"], *(patch["path"] for patch in one.get("patches", []))]
    for name in named:
        assert (folder / name).exists(), name
    listed = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert listed == {name for name in named if name.endswith(".yaml")}


def test_the_overlay_builds() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    built = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes/overlays/example")],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert "registry.example.org/ckptgov:0.1.0" in built.stdout
    assert "every_steps: 1000" in built.stdout  # the overlay's tiers, not the base's


def test_what_pods_refer_to_is_made_here_or_said_to_be_made_apart() -> None:
    made = {(one["kind"], one["metadata"]["name"]) for one in of_base()}
    made |= {
        (one["kind"], one["metadata"]["name"])
        for name in ("secret.example.yaml", "overlays/example/volume.yaml")
        for one in documents(DEPLOY / "kubernetes" / name)
    }
    for spec in (spec for one in of_base() for spec in pod_specs(one)):
        assert ("ServiceAccount", spec["serviceAccountName"]) in made
        for volume in spec["volumes"]:
            for key, kind, name in (
                ("configMap", "ConfigMap", "name"),
                ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
            ):
                if key in volume:
                    assert (kind, volume[key][name]) in made
        for container in spec["containers"]:
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in spec["volumes"]}
            for variable in container["env"]:
                secret = variable.get("valueFrom", {}).get("secretKeyRef")
                assert secret is None or ("Secret", secret["name"]) in made


def test_selectors_find_the_pods_they_mean() -> None:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for one in of_base():
        by_kind.setdefault(one["kind"], []).append(one)
    pods = [
        one["spec"]["template"]["metadata"]["labels"]
        for kind in ("Deployment", "DaemonSet")
        for one in by_kind[kind]
    ]
    wanted = [one["spec"]["selector"] for one in by_kind["Service"]]
    wanted += [one["spec"]["selector"]["matchLabels"] for one in by_kind["PodDisruptionBudget"]]
    wanted += [one["spec"]["podSelector"]["matchLabels"] for one in by_kind["NetworkPolicy"]]
    for selector in wanted:
        assert any(selector.items() <= labels.items() for labels in pods), selector


def test_nothing_may_become_more_than_it_is() -> None:
    for spec in (spec for one in of_base() for spec in pod_specs(one)):
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            assert not context.get("privileged")
        assert spec["automountServiceAccountToken"] is False


def test_no_secret_is_written_into_a_manifest() -> None:
    for path in [*PLAIN, *LAUNCHERS]:
        for one in documents(path):
            if one["kind"] == "Secret":
                assert path.name.endswith(".example.yaml")
                assert all("change-me" in value for value in one["stringData"].values())
