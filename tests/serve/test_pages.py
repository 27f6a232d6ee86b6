"""The OpenAPI description matches the types, the paths, and the server's responses."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import zstandard

import relevance_gen
from relevance_gen import types, wire
from relevance_gen.serve import pages
from relevance_gen.serve.adapters import cohere, mcp, ollama, own, tei
from relevance_gen.serve.adapters.anthropic import messages
from relevance_gen.serve.adapters.openai import chat, completions, embeddings, responses
from relevance_gen.serve.adapters.openai.requests import SamplingRequest, StreamOptions
from relevance_gen.serve.http.http_errors import TABLE
from relevance_gen.serve.routes import ROUTES
from tests.serve.harness import ROOT, Server

DOCUMENT: dict[str, Any] = json.loads(pages.document(ROUTES))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
LENIENT: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(cohere.RerankRequest, cohere.RelevantSpans, tei.TextsRequest),
        *(completions.CompletionRequest, chat.ChatRequest, StreamOptions),
        *(embeddings.EmbeddingsRequest, responses.ResponsesRequest, messages.MessagesRequest),
        *(ollama.OllamaChatRequest, ollama.OllamaGenerateRequest, ollama.OllamaShowRequest),
        *(ollama.OllamaEmbedRequest, ollama.OllamaPromptEmbedRequest),
    )
}
"""What other people's clients send: unknown fields are ignored, and null is the default."""
FORWARDED = {
    *("temperature", "top_p", "min_p", "min_tokens", "max_input_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("logit_bias", "allowed_token_ids", "json_schema", "regex", "grammar", "choice"),
}
"""Fields that are passed on without a default of their own, so that `GenerationRequest` has it."""
TYPES = {
    name: getattr(module, name)
    for module in (types, own)
    for name in SCHEMAS
    if hasattr(module, name)
}
OF_FOLDERS = {"other_chunks", "file_name", "defined_names", "exact_identifiers"}
"""Contributions that exist only for a `FolderIndex`, and not over HTTP."""

ADDED = {"GenerationRequest": ["model"], "SearchResult": ["filled"]}
"""Fields that exist only over HTTP: the name of a model, and a property of the type."""


def test_openapi_version_and_library_version() -> None:
    """The document declares 3.1 and the library's version."""
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["version"] == relevance_gen.__version__


@pytest.mark.parametrize("name", sorted(TYPES))
def test_schemas_are_the_types(name: str) -> None:
    """Every schema has its type's fields in order, with the same defaults; fields without defaults are required."""
    schema, cls = SCHEMAS[name], TYPES[name]
    fields = attrs.fields_dict(cls)
    if name == "SearchResponse":
        del fields["confidence"]  # over HTTP it is part of the metadata, on request
    if name == "GenerationResponse":
        del fields["token_texts"], fields["reused_tokens"]  # for other dialects
    if name == "Completion":
        del fields["parts"], fields["stop_string"], fields["reasoning_tokens"]  # likewise
    if name == "Explanation":
        fields = {field: one for field, one in fields.items() if field not in OF_FOLDERS}
    if name == "SearchRequest":  # its fields are derived from `SearchParams`, in another order
        assert sorted(schema["properties"]) == sorted(fields)
    else:
        assert list(schema["properties"]) == [*fields, *ADDED.get(name, [])]
    if not name.endswith(("Request", "Chunk")):
        required = {
            field for field, attribute in fields.items() if attribute.default is attrs.NOTHING
        }
        if name == "Explanation":  # parts that gave nothing are written, too
            required = set(wire.unstructure(types.Explanation(0.5, ())))
        assert set(schema["required"]) == required
        return
    assert schema["additionalProperties"] is False
    for field, attribute in fields.items():
        default = (
            attribute.default.factory()
            if isinstance(attribute.default, attrs.Factory)
            else attribute.default
        )
        default = list(default) if isinstance(default, tuple) else default
        assert (field in schema.get("required", [])) == (default is attrs.NOTHING)
        assert schema["properties"][field].get("default", attrs.NOTHING) == default


@pytest.mark.parametrize("name", sorted(LENIENT))
def test_lenient_schemas_are_the_types(name: str) -> None:
    """A lenient schema has its type's fields in their order, requires the same, takes null for the others' defaults."""
    schema, fields = SCHEMAS[name], attrs.fields_dict(LENIENT[name])
    assert list(schema["properties"]) == list(fields)
    needed = [field for field, attribute in fields.items() if attribute.default is attrs.NOTHING]
    assert schema.get("required", []) == needed
    assert "additionalProperties" not in schema
    for field, attribute in fields.items():
        if field not in needed:
            meant = attribute.default
            if issubclass(LENIENT[name], SamplingRequest) and field in FORWARDED:
                meant = getattr(types.GenerationRequest(""), field)
            meant = list(meant) if isinstance(meant, tuple) else meant
            assert schema["properties"][field]["default"] == meant
            assert "null" in json.dumps(schema["properties"][field])


REQUIRED: dict[str, dict[str, Any]] = {
    "GenerationRequest": {"text": "x"},
    "SearchRequest": {"query": "x", "chunk_txts": []},
    "ExplanationRequest": {"query": "x", "chunk_txts": [], "original_index": 0},
    "CompressionRequest": {"question": "x", "chunk_txts": [], "max_tokens": 1},
    "CitationRequest": {"text": "x", "chunk_txts": []},
    "ExtractionRequest": {"content": ""},
    "PromptRequest": {"question": "x", "chunk_txts": []},
    "RerankRequest": {"query": "x", "documents": []},
    "RelevantSpans": {"mode": "enabled"},
    "TextsRequest": {"query": "x", "texts": []},
    "CompletionRequest": {"prompt": "x"},
    "ChatRequest": {"messages": [{"role": "user", "content": "x"}], "logprobs": True},
    "StreamOptions": {},
    "EmbeddingsRequest": {"input": "x"},
    "ResponsesRequest": {"input": "x"},
    "MessagesRequest": {"messages": [{"role": "user", "content": "x"}]},
    "OllamaChatRequest": {"messages": [{"role": "user", "content": "x"}]},
    "OllamaGenerateRequest": {"prompt": "x"},
    "OllamaShowRequest": {},
    "OllamaEmbedRequest": {"input": "x"},
    "OllamaPromptEmbedRequest": {"prompt": "x"},
}
READERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "GenerationRequest": own.read_generation,
    "PromptRequest": own.read_prompt,
    "CompletionRequest": completions.read,
    "ChatRequest": chat.read,
    "EmbeddingsRequest": embeddings.read,
    "ResponsesRequest": responses.read,
    "MessagesRequest": messages.read,
    "OllamaChatRequest": ollama.read_chat,
    "OllamaGenerateRequest": ollama.read_generate,
    "OllamaShowRequest": ollama.read_show,
    "OllamaEmbedRequest": ollama.read_embed,
    "OllamaPromptEmbedRequest": ollama.read_prompt_embed,
    "SearchRequest": own.read_search,
    "IndexSearchRequest": own.read_search,
    "IndexExplanationRequest": own.read_explanation,
    "IndexPromptRequest": own.read_prompt,
    "IndexCompressionRequest": own.read_compression,
    "AgentMessage": lambda body: mcp.read(body, ()),
}
"""What reads a body of which a type checks a part alone."""


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_schema_bounds_equal_type_bounds(name: str) -> None:
    """A value at a schema's bound is accepted by the type, and one just beyond is refused."""
    cls: Any = LENIENT.get(name) or TYPES[name]
    required = REQUIRED[name]
    read = READERS.get(name, lambda body: cls(**body))
    for field, schema in SCHEMAS[name]["properties"].items():
        step = 1 if "integer" in schema.get("type", []) else 1e-6
        for bound, sign in (("minimum", -1), ("maximum", 1)):
            if bound in schema:
                read({**required, field: schema[bound]})
                with pytest.raises(relevance_gen.InvalidRequestError):
                    read({**required, field: schema[bound] + sign * step})


def test_paths_are_the_routes() -> None:
    """Every path of every route is described with its method, aliases with a reference, and no other path is."""
    described = {
        (path, method.upper()) for path, methods in DOCUMENT["paths"].items() for method in methods
    }
    assert described == {(path, route.method) for route in ROUTES for path in route.paths}
    names = [
        operation["operationId"]
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
    ]
    assert len(set(names)) == len(names)
    search, same = (DOCUMENT["paths"][path]["post"] for path in ("/search", "/distributor/search"))
    assert {**search, "operationId": "", "summary": ""} == {
        **same,
        "operationId": "",
        "summary": "",
    }


def test_description_requires_keys_as_the_server_does() -> None:
    """A path with a required key accepts it in either header; paths with an optional key say so; other paths omit keys."""
    either = [{"key": []}, {"bearer": []}]
    for route in ROUTES:
        said = DOCUMENT["paths"][route.path][route.method.lower()]["security"]
        assert said == {"always": either, "setting": [{}, *either], "never": []}[route.key]
    assert {name for one in either for name in one} == set(
        DOCUMENT["components"]["securitySchemes"]
    )


def test_openapi_references_exist() -> None:
    """Every $ref is there."""
    for reference in re.findall(r'"\$ref": ?"#/([^"]+)"', pages.document(ROUTES).decode()):
        found: Any = DOCUMENT
        for part in reference.split("/"):
            found = found[part]
        assert found


def test_examples_are_allowed() -> None:
    """The example of every request body is accepted by its type, and each path has an example."""
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if not content:
                continue
            schemas = content["schema"].get("anyOf", [content["schema"]])
            names = [schema["$ref"].rsplit("/", 1)[1] for schema in schemas]
            examples = [value["value"] for value in content.get("examples", {}).values()] or [
                content["example"]
            ]
            taken = set()
            for example in examples:
                name = next(
                    name for name in names if set(SCHEMAS[name].get("required", ())) <= set(example)
                )
                if cls := LENIENT.get(name) or TYPES.get(name):
                    wire.structure(
                        cls, example
                    )  # strictly: an example must not contain ignored fields
                assert cls or name in READERS
                READERS.get(name, lambda _: None)(example)
                taken.add(name)
            assert taken == set(names)


def test_errors_are_documented() -> None:
    """docs/server.md lists exactly the statuses and types that the table of errors has."""
    page = (ROOT / "docs" / "server.md").read_text()
    documented = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(set(documented)) == sorted(documented)
    assert {(str(status), kind) for _, status, kind, _ in TABLE} == set(documented)


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_load_no_foreign_resources(server: Server, path: str) -> None:
    """Both pages load from this server only: without foreign addresses, and with a policy that blocks them."""
    answer = server.call("GET", path, headers={"Accept": "text/html,*/*;q=0.8"})
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    parts = {name: server.call("GET", f"/static/{name}") for name in pages._parts()}
    for name, part in parts.items():
        kind = "css" if name.endswith(".css") else "javascript"
        assert (part.status, part.headers["Content-Type"]) == (200, f"text/{kind}; charset=utf-8")
    texts = (
        (answer.body, *(part.body for part in parts.values())) if path == "/" else (answer.body,)
    )
    for text in texts:
        without_icon = re.sub(rb'href="data:[^"]*"', b"", text)
        assert not re.search(rb"https?://|//[a-z]|@import|url\(", without_icon.replace(b"// ", b""))
    assert set(re.findall(rb'"static/([^"]+)"', answer.body)) == (
        {b"page.css", b"main.js", b"theme.js"} if path == "/" else set()
    )
    directives = dict(
        one.split(" ", 1) for one in answer.headers["Content-Security-Policy"].split("; ")
    )
    assert [directives.pop(name) for name in ("default-src", "connect-src", "img-src")] == [
        "'none'",
        "'self'",
        "data:",
    ]
    own = "'self'" if path == "/" else "'sha256-"
    assert [directives.pop(name)[: len(own)] for name in ("script-src", "style-src")] == [own] * 2
    assert (directives.pop("frame-src"), directives.pop("require-trusted-types-for")) == (
        "blob:",
        "'script'",
    )
    assert set(directives) == {"base-uri", "form-action", "frame-ancestors", "trusted-types"}
    assert set(directives.values()) == {"'none'"}


@pytest.mark.parametrize(
    "name", ["", "none.js", "../page.html", "..%2Fpage.html", "page/main.js", "\0"]
)
def test_only_page_files_are_served(server: Server, name: str) -> None:
    """Only the page's parts are served of all files in the package."""
    assert server.call("GET", f"/static/{name.replace(chr(0), '%00')}").status == 404


FILES = ("/", "/docs", "/openapi.json", "/static/main.js", "/static/page.css")
DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "zstd": lambda body: zstandard.ZstdDecompressor().decompress(body),
    "identity": bytes,
}


@pytest.mark.parametrize("path", FILES)
def test_files_are_compressed_and_revalidated(server: Server, path: str) -> None:
    """A file is sent in the accepted coding, and not again to a client that has it in this coding."""
    plain = server.call("GET", path, headers={"Accept": "text/html"})
    assert "Content-Encoding" not in plain.headers
    tags = set()
    for coding, decode in DECODERS.items():
        accept = {"Accept": "text/html", "Accept-Encoding": f"{coding};q=0.5"}
        sent = server.call("GET", path, headers=accept)
        assert sent.headers.get("Content-Encoding", "identity") == coding
        assert "Accept-Encoding" in sent.headers["Vary"]
        assert decode(sent.body) == plain.body
        assert server.call("HEAD", path, headers=accept).headers["ETag"] == sent.headers["ETag"]
        tags.add(sent.headers["ETag"])
        for known in (sent.headers["ETag"], f'"x", W/{sent.headers["ETag"]}', "*"):
            again = server.call("GET", path, headers={**accept, "If-None-Match": known})
            assert (again.status, again.body) == (304, b"")
            for name in ("ETag", "Vary", "Cache-Control"):
                assert again.headers[name] == sent.headers[name]
        changed = server.call("GET", path, headers={**accept, "If-None-Match": '"x"'})
        assert (changed.status, changed.body) == (200, sent.body)
    assert len(tags) == len(DECODERS)
    assert 'status="304"' in server.call("GET", "/metrics").body.decode()


def test_root_lists_paths_for_programs(server: Server) -> None:
    """Clients that do not accept HTML get name, version, every path with its method, and limits; HEAD works for both."""
    for accept in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        answer = server.call("GET", "/", headers=accept)
        assert (answer.status, answer.headers["Content-Type"], answer.headers["Vary"]) == (
            200,
            "application/json",
            "Accept, Accept-Encoding",
        )
        assert answer.json["version"] == relevance_gen.__version__
        assert answer.json["endpoints"] == [
            f"{route.method} {path}" for route in ROUTES for path in route.paths
        ]
        assert answer.json["limits"] == {"max_chunks": 200_000, "max_body_bytes": 64 << 20}
    for accept in ({}, {"Accept": "text/html"}):
        head, full = (server.call(method, "/", headers=accept) for method in ("HEAD", "GET"))
        assert (head.body, head.headers["Content-Length"]) == (b"", str(len(full.body)))


def test_openapi_page_shows_all_examples(server: Server) -> None:
    """In a browser: every example can be selected, every status has a description, and backticks are not shown."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=5000",
        "--dump-dom",
    ]
    done = subprocess.run(
        [browser, *flags, f"{server.url}/docs"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    shown = re.sub(r"<(script|style)>.*?</\1>", "", done.stdout, flags=re.DOTALL)
    assert "Loading" not in shown, done.stderr
    assert "`" not in shown
    assert "undefined" not in shown
    for path, methods in DOCUMENT["paths"].items():
        assert f" {path}</code>" in shown
        for operation in methods.values():
            content = (
                operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            )
            assert all(f"<option>{name}</option>" in shown for name in content.get("examples", {}))
            for status in operation["responses"]:
                assert re.search(rf"<td>{status} [A-Z][A-Za-z -]+</td>", shown), status


def test_openapi_document_is_served(server: Server) -> None:
    """GET /openapi.json is the document."""
    assert server.call("GET", "/openapi.json").body == pages.document(ROUTES)


def test_page_table_lists_explanation_parts() -> None:
    """Every contribution that an explanation can have is named in the page's table."""
    parts = set(attrs.fields_dict(types.Explanation))
    parts -= {"score", "terms", "passage", "relevance", "violated_operators", "corrections"}
    parts -= OF_FOLDERS | {"top_similarity"}  # the page adds it to the other contributions
    script = pages._parts()["passages.js"].decode()
    reasons = re.search(r"const REASONS = \[(.*?)\n\];", script, re.DOTALL)
    assert reasons
    named = re.findall(r", \[(.*?)\]\]", reasons[1])
    assert set(re.findall(r'"(\w+)"', " ".join(named))) == parts


def test_page_stays_small() -> None:
    """The files that the page loads are together below 150 kB."""
    static = ROOT / "relevance_gen" / "serve" / "static"
    page_files = [static / "page.html", *static.joinpath("page").iterdir()]
    assert sum(file.stat().st_size for file in page_files) < 150_000
