"""The API's description (OpenAPI 3.1), made of the endpoints themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ckptgov import __version__
from ckptgov.service.calls import JSON, AnyEndpoint, Cost
from ckptgov.service.refusals import WORDS_OF_STATUS
from ckptgov.service.schemas import ERROR
from ckptgov.wire import requests

_PARAMETER = re.compile(r"\{([a-z_]+)(?::[a-z]+)?\}")
_ABOUT = """\
Answers are the documents that the command line prints with `--json`; errors are documents with
`error.kind` and `error.exit_code`. 404 with kind `never-any` says that there never was a
checkpoint. Every other 404 (kind `no-such-endpoint`, `no-such-task`, `no-such-token`) says nothing
about checkpoints and must not be read so; a run that is not registered, or is another team's, is
503 `unknown-run`. `{run}` holds at most one slash; where its second part is the name of an
endpoint below it (a run `team/latest`), the slash is written `%2F`.
"""


def description(endpoints: Sequence[AnyEndpoint]) -> bytes:
    """The document, as it is served."""
    paths: dict[str, dict[str, object]] = {}
    for one in endpoints:
        paths.setdefault(_plain(one.path), {})[one.method.lower()] = _operation(one)
    bodies = [one.body for one in endpoints if one.has_body and not one.is_raw]
    queries = [one.query for one in endpoints]
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "ckptgov", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": {**requests.schemas([*bodies, *queries]), "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(described)


def statuses_of(one: AnyEndpoint) -> list[int]:
    """Every status of an endpoint that stands for an error."""
    found = {400, 405, 500, 503, 504, *one.errors}
    if one.rights:
        found |= {401, 403}
    if one.has_body:
        found |= {413, 415}
    return sorted(found - set(one.answers))


def _operation(one: AnyEndpoint) -> dict[str, object]:
    operation: dict[str, object] = {
        "operationId": f"{one.method.lower()}{_PARAMETER.sub('', one.path).replace('/', '_')}",
        "summary": one.does,
        "parameters": [*_path_parameters(one), *_query_parameters(one)],
        "responses": dict(_responses(one)),
        "security": [{"token": []}] if one.rights else [],
    }
    if one.rights:
        rights = " or ".join(f"`{right.value}`" for right in one.rights)
        every = ", of a token that is bound to no team" if one.for_every_team else ""
        operation["description"] = f"Needs the right {rights}{every}."
    if one.has_body:
        operation["requestBody"] = {"required": _needs_body(one), "content": _body(one)}
    return operation


def _body(one: AnyEndpoint) -> dict[str, object]:
    if one.is_raw:
        return {JSON: {"schema": one.raw_schema}}
    return {JSON: {"schema": {"$ref": f"#/components/schemas/{one.body.__name__}"}}}


def _needs_body(one: AnyEndpoint) -> bool:
    return one.is_raw or any(field.required for field in msgspec.structs.fields(one.body))


def _path_parameters(one: AnyEndpoint) -> Iterator[dict[str, object]]:
    for name in _PARAMETER.findall(one.path):
        schema = {"type": "string", "minLength": 1, "maxLength": 200}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(one: AnyEndpoint) -> Iterator[dict[str, object]]:
    schema = requests.schemas([one.query])[one.query.__name__]
    for name, member in schema.get("properties", {}).items():
        shown = {key: value for key, value in member.items() if key != "default"}
        told = [each for each in shown.get("anyOf", ()) if each != {"type": "null"}]
        if len(told) == 1:
            shown = told[0]
        yield {"name": name, "in": "query", "required": False, "schema": shown}


def _responses(one: AnyEndpoint) -> Iterator[tuple[str, object]]:
    for status, schema in sorted(one.answers.items()):
        content: dict[str, object] = {one.media: {"schema": schema}}
        if one.is_plain_too:
            content["text/plain"] = {"schema": {"type": "string"}}
        words = "accepted; ask for the task" if status == 202 else "the answer"
        if status == 200 and one.cost is Cost.STORAGE:
            words = "the answer; where it holds `error`, something of it could not be done"
        yield str(status), {"description": words, "content": content}
    error = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status in statuses_of(one):
        yield str(status), {"description": WORDS_OF_STATUS[status], "content": error}


def _plain(path: str) -> str:
    return _PARAMETER.sub(r"{\1}", path)


def kinds_of(endpoints: Iterable[AnyEndpoint]) -> list[str]:
    """(method and path) of every endpoint, for people."""
    return [f"{one.method} {_plain(one.path)}" for one in endpoints]
