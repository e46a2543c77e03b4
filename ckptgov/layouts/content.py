"""Proving one file by the format that its name promises: JSON, safetensors, torch zips."""

from __future__ import annotations

import json
from typing import Final

from ckptgov.errors import Malformed
from ckptgov.layouts.proof import Proof
from ckptgov.layouts.safetensors import SafetensorsHeader, read_safetensors
from ckptgov.model.facts import Depth, Finding, Reason

JSON_CAP_BYTES: Final = 256 * 2**20
"""A trainer's log history or a weight map stays far below this."""

TORCH_SUFFIXES: Final = (".pt", ".pth", ".bin", ".ckpt")


class SpelledNumber(str):
    """A JSON number with a fraction, exponent or no finite value, as the file spells it."""

    __slots__ = ()


_SPELLED: Final = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


def json_object(proof: Proof, path: str) -> dict[str, object] | None:
    """The JSON object in a member; numbers that are no integers come as ``SpelledNumber``.

    None with a finding when it does not parse whole, None alone when it is missing or already
    refused (an empty one).
    """
    if not proof.has(path) or proof.refused(path):
        return None
    try:
        value = json.loads(
            proof.tree.read_whole(proof.at(path), JSON_CAP_BYTES),
            parse_float=SpelledNumber,
            parse_constant=lambda name: SpelledNumber(_SPELLED[name]),
        )
    except Malformed as error:
        proof.refuse_malformed(path, error)
        return None
    except (ValueError, RecursionError) as error:
        proof.refuse(Reason.TORN, path, f"does not parse as JSON: {_first_line(error)}")
        return None
    if not isinstance(value, dict):
        proof.refuse(Reason.TORN, path, "is JSON, but not an object")
        return None
    return value


def refuse_whole(proof: Proof, reason: Reason, evidence: str) -> None:
    """Add a finding about the candidate itself, by its name even where it is a group of files."""
    proof.findings.append(Finding(reason, proof.found.name, evidence))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__


def prove_safetensors(proof: Proof, path: str) -> SafetensorsHeader | None:
    """Prove a member as a safetensors file; None when it is missing or refused."""
    if not proof.has(path) or proof.refused(path):
        return None
    try:
        with proof.tree.open(proof.at(path)) as file:
            return read_safetensors(file, name=proof.at(path))
    except Malformed as error:
        proof.refuse_malformed(path, error)
        return None


def prove_content(proof: Proof, path: str, depth: Depth) -> None:
    """Prove a member that is there by its suffix; other suffixes promise nothing."""
    name = path or proof.found.name
    if name.endswith(TORCH_SUFFIXES):
        proof.prove_zip(path, depth)
    elif name.endswith(".safetensors"):
        prove_safetensors(proof, path)
    elif name.endswith(".json"):
        json_object(proof, path)
