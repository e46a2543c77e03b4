"""Imports point down only; siblings of a layer are blind to each other. Proven from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LAYERS: dict[str, int] = {
    "errors": 0,
    "model": 1,
    "wire": 2,
    "config": 2,
    "manifest": 2,
    "storage": 2,
    "layouts": 2,
    "catalog": 2,
    "planning": 2,
    "work": 3,
    "client": 3,
    "ops": 4,
    "governor": 5,
    "service": 6,
    "integrations": 6,
    "ckptgov_cli": 7,
}
"""Room to layer: a room may import rooms of a lower number, and itself."""

ONLY_IN: dict[str, frozenset[str]] = {
    "sqlmodel": frozenset({"catalog"}),
    "sqlalchemy": frozenset({"catalog"}),
    "sqlite3": frozenset({"catalog"}),
    "alembic": frozenset({"catalog"}),
    "psycopg": frozenset({"catalog"}),
    "fastapi": frozenset({"service"}),
    "starlette": frozenset({"service"}),
    "pydantic": frozenset({"service"}),
    "uvicorn": frozenset({"service"}),
    "apscheduler": frozenset({"service"}),
    "prometheus_client": frozenset({"service"}),
    "yaml": frozenset({"config"}),
    "typer": frozenset({"ckptgov_cli"}),
    "rich": frozenset({"ckptgov_cli"}),
    "xxhash": frozenset({"manifest"}),
    "ctypes": frozenset({"storage"}),
    "pickle": frozenset({"layouts"}),
    "_pickle": frozenset({"layouts"}),
    "torch": frozenset(),
    "safetensors": frozenset(),
    "numpy": frozenset(),
    "jax": frozenset(),
    "deepspeed": frozenset(),
    "lightning": frozenset(),
}
"""Third parties and dangerous modules that belong to certain rooms only."""


def product_files() -> list[Path]:
    packages = [ROOT / "ckptgov", ROOT / "cli" / "ckptgov_cli"]
    return sorted(path for package in packages for path in package.rglob("*.py"))


def room_of(path: Path) -> str | None:
    """The room a file belongs to; None for the package's own ``__init__``."""
    if "ckptgov_cli" in path.parts:
        return "ckptgov_cli"
    below = path.relative_to(ROOT / "ckptgov").parts
    if below == ("__init__.py",):
        return None
    return below[0].removesuffix(".py")


def imports_of(path: Path) -> list[tuple[int, str]]:
    """(line, module) of every import, wherever it stands: lazy ones count."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            if module == "ckptgov":
                found += [(node.lineno, f"ckptgov.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, module))
    return found


def room_imported(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] == "ckptgov_cli":
        return "ckptgov_cli"
    if parts[0] == "ckptgov" and len(parts) > 1 and not parts[1].startswith("__"):
        return parts[1]
    return None


@pytest.mark.parametrize("path", product_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_only(path: Path) -> None:
    room = room_of(path)
    if room is None or room == "testing":
        return
    assert room in LAYERS, f"{room} is no room of the design"
    for line, module in imports_of(path):
        target = room_imported(module)
        if target is None or target == room:
            continue
        assert target in LAYERS, f"{path}:{line}: {module} is in no room"
        assert LAYERS[target] < LAYERS[room], f"{path}:{line}: {room} imports {target}"


@pytest.mark.parametrize("path", product_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_third_parties_stay_in_their_rooms(path: Path) -> None:
    room = room_of(path) or "ckptgov"
    if room == "testing":
        return
    for line, module in imports_of(path):
        allowed = ONLY_IN.get(module.split(".")[0])
        if allowed is not None:
            assert room in allowed, f"{path}:{line}: {room} imports {module}"


def test_nothing_in_the_product_imports_the_test_builders() -> None:
    for path in product_files():
        if room_of(path) == "testing":
            continue
        for line, module in imports_of(path):
            assert not module.startswith("ckptgov.testing"), f"{path}:{line}"


@pytest.mark.parametrize("room", sorted(set(LAYERS) - {"errors", "governor"}))
def test_every_room_says_what_it_promises(room: str) -> None:
    home = ROOT / "cli" / room if room == "ckptgov_cli" else ROOT / "ckptgov" / room
    docstring = ast.get_docstring(ast.parse((home / "__init__.py").read_text()))
    assert docstring, f"{room} has no docstring"
    assert len(docstring) > 80, f"{room}: say what it promises and what it must not know"


def test_only_the_command_line_prints() -> None:
    for path in product_files():
        if path.name == "output.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno} prints"


def test_pickles_are_loaded_by_the_inert_child_only() -> None:
    loaders = [
        path.name
        for path in product_files()
        if room_of(path) != "testing"
        and any(module.split(".")[0] in ("pickle", "_pickle") for _, module in imports_of(path))
    ]
    assert loaders == ["pickle_child.py"]
