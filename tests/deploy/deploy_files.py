"""What the tests of the deployment files share: where they are, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def documents(path: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file; a key given twice fails."""
    return [one for one in yaml.load_all(path.read_text(), _Strict) if one is not None]


class _Strict(yaml.SafeLoader):
    pass


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict:
    own = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    assert len(own) == len(set(own)), f"{node.start_mark}: a key is given twice"
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_Strict.add_constructor("tag:yaml.org,2002:map", _mapping)


def pod_specs(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every pod template that a manifest of any kind holds."""
    found: list[dict[str, Any]] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("containers"), list):
                found.append(value)
            for one in value.values():
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    walk(document)
    return found
