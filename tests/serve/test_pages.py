"""The description: held to the types, to the paths, and to what the server does."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import pytest

import relevance_gen
from relevance_gen import types
from relevance_gen.serve import pages
from relevance_gen.serve.edge.problems import TABLE
from relevance_gen.serve.routes import ROUTES
from tests.serve.harness import ROOT, Server

DOCUMENT: dict[str, Any] = json.loads(pages.document(ROUTES))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def test_it_is_openapi_3_1_of_this_version() -> None:
    """The document says 3.1 and the library's version."""
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["version"] == relevance_gen.__version__


@pytest.mark.parametrize("name", sorted(set(SCHEMAS) - {"Error"}))
def test_schemas_are_the_types(name: str) -> None:
    """Every schema has its type's fields in their order, with the same defaults, and requires those without one."""
    schema, cls = SCHEMAS[name], getattr(types, name)
    fields = attrs.fields_dict(cls)
    if name == "SearchResponse":
        del fields["confidence"]  # on the wire it stands in the metadata, if asked for
    assert list(schema["properties"]) == list(fields)
    if not name.endswith(("Request", "Chunk")):
        required = {field for field, attribute in fields.items() if attribute.default is attrs.NOTHING}
        assert set(schema["required"]) == required
        return
    assert schema["additionalProperties"] is False
    for field, attribute in fields.items():
        default = attribute.default.factory() if isinstance(attribute.default, attrs.Factory) else attribute.default
        default = list(default) if isinstance(default, tuple) else default
        assert (field in schema.get("required", [])) == (default is attrs.NOTHING)
        assert schema["properties"][field].get("default", attrs.NOTHING) == default


@pytest.mark.parametrize("name", ["GenerationRequest", "SearchRequest"])
def test_the_schemas_bounds_are_the_types_bounds(name: str) -> None:
    """A value at a schema's bound is accepted by the type, and one just beyond is refused."""
    cls: Any = getattr(types, name)
    required = {"text": "x"} if name == "GenerationRequest" else {"query": "x", "chunk_txts": []}
    for field, schema in SCHEMAS[name]["properties"].items():
        step = 1 if "integer" in schema["type"] else 1e-6
        for bound, sign in (("minimum", -1), ("maximum", 1)):
            if bound in schema:
                cls(**{**required, field: schema[bound]})
                with pytest.raises(relevance_gen.InvalidRequestError):
                    cls(**{**required, field: schema[bound] + sign * step})


def test_paths_are_the_routes() -> None:
    """Every path of every route is described with its method, an alias as what it stands for, and nothing else is."""
    described = {(path, method.upper()) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {(path, route.method) for route in ROUTES for path in route.paths}
    names = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)
    search, same = (DOCUMENT["paths"][path]["post"] for path in ("/search", "/distributor/search"))
    assert {**search, "operationId": "", "summary": ""} == {**same, "operationId": "", "summary": ""}


def test_keys_are_described_as_they_are_asked_for() -> None:
    """A path that asks for a key takes it in either header; one that may be open says so; others speak of no key."""
    either = [{"key": []}, {"bearer": []}]
    for route in ROUTES:
        said = DOCUMENT["paths"][route.path][route.method.lower()]["security"]
        assert said == {"always": either, "setting": [{}, *either], "never": []}[route.key]
    assert {name for one in either for name in one} == set(DOCUMENT["components"]["securitySchemes"])


def test_references_lead_somewhere() -> None:
    """Every $ref is there."""
    for reference in re.findall(r'"\$ref": ?"#/([^"]+)"', pages.document(ROUTES).decode()):
        found: Any = DOCUMENT
        for part in reference.split("/"):
            found = found[part]
        assert found


def test_examples_are_allowed() -> None:
    """The example of every request body is accepted by its type."""
    from relevance_gen import wire

    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content:
                wire.structure(getattr(types, content["schema"]["$ref"].rsplit("/", 1)[1]), content["example"])


def test_every_error_is_documented() -> None:
    """docs/server.md lists exactly the statuses and types that the table of errors has."""
    page = (ROOT / "docs" / "server.md").read_text()
    documented = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(set(documented)) == sorted(documented)
    assert {(str(status), kind) for _, status, kind, _ in TABLE} == set(documented)


def test_the_page_needs_nothing_from_elsewhere(server: Server) -> None:
    """The page loads from this server alone: no address of another, and a policy that would not let it."""
    answer = server.call("GET", "/docs")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert not re.search(rb"https?://|//[a-z]|@import|url\(", answer.body.replace(b"// ", b""))
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_the_document_is_served(server: Server) -> None:
    """GET /openapi.json is the document."""
    assert server.call("GET", "/openapi.json").body == pages.document(ROUTES)
