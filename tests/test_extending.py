"""Extending the library touches only the files that a table in docs/architecture.md names.

Each test changes a copy of the library and uses the copy in a separate process.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serve.harness import KEYED, REAL, Server, eventually

ROOT = Path(__file__).parents[1]
_ROUTES = "ROUTES: tuple[Route, ...] = ("
_NAMED = re.compile(r"`([\w/]+(?:\.(?:py|js|json)|/))`")


def allowed(kind: str) -> list[str]:
    """Return the files and folders that the table names for an extension of this kind."""
    table = (
        (ROOT / "docs" / "architecture.md")
        .read_text(encoding="utf-8")
        .split("## Where does it go?")[1]
    )
    (row,) = [line.split("|") for line in table.splitlines() if line.startswith(f"| {kind} |")]
    return _NAMED.findall(row[2])


class Extended:
    """A copy of the library in which only the files of the table can be added or changed."""

    def __init__(self, folder: Path, *kinds: str) -> None:
        self.folder = folder
        self._allowed = [name for kind in kinds for name in allowed(kind)]
        shutil.copytree(
            ROOT / "relevance_gen",
            folder / "relevance_gen",
            ignore=shutil.ignore_patterns("__pycache__"),
        )

    def _path(self, name: str) -> Path:
        folders = tuple(path for path in self._allowed if path.endswith("/"))
        assert name in self._allowed or name.startswith(folders), name
        return self.folder / "relevance_gen" / name

    def add(self, name: str, code: str) -> None:
        """Add a file."""
        path = self._path(name)
        assert not path.exists()
        path.write_text(code, encoding="utf-8")

    def change(self, name: str, old: str, new: str) -> None:
        """Replace a text that occurs exactly once in a file."""
        path = self._path(name)
        code = path.read_text(encoding="utf-8")
        assert code.count(old) == 1, f"{old!r} occurs {code.count(old)} times in {name}"
        path.write_text(code.replace(old, new), encoding="utf-8")

    def insert(self, name: str, pattern: str, new: str) -> None:
        """Replace the first match of a pattern in a file; `new` can refer to groups of the pattern."""
        path = self._path(name)
        code, n = re.subn(pattern, new, path.read_text(encoding="utf-8"), count=1)
        assert n == 1, f"{pattern!r} does not occur in {name}"
        path.write_text(code, encoding="utf-8")

    def run(self, script: str) -> str:
        """Return the output of a script that uses the copy."""
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def extend(tmp_path: Path) -> Callable[..., Extended]:
    """Return a function that copies the library for the named kinds of extension."""
    return lambda *kinds: Extended(tmp_path, *kinds)


STAGE = '''
"""Prefer short chunks."""

from relevance_gen.retrieval.ranking.stage import FeatureSpec, NumericFeatures
from relevance_gen.retrieval.ranking.stage import N_STAGE_CANDIDATES, Stage


class ChunkLength(FeatureSpec):
    """Number of words of chunks."""

    def extract(self, batch):
        return NumericFeatures(batch.segment.n_occurrences[batch.chunk_ords][None])


class Brevity(Stage):
    """Adds a tenth divided by the number of words."""

    order = 3.5
    parts = ("brevity",)
    n_best = N_STAGE_CANDIDATES

    features = ChunkLength()

    def score(self, table, segments):
        rows = table.stage_rows
        table.add(self.parts, rows, 0.1 / table.extract(self.features, rows, segments).values)
'''
USE_STAGE = """
import math, pickle
from relevance_gen import ChunkIndex, search, wire
texts = ["Cats purr and then they sleep.", "Cats purr.", "Dogs bark."]
index = ChunkIndex(texts[:1])
index.add(texts[1:])
response = index.search("when do cats purr")
assert response == pickle.loads(pickle.dumps(index)).search("when do cats purr") == search("when do cats purr", texts)
for result in response:
    parts = index.explain("when do cats purr", result.original_index)
    sums = [term.contribution for term in parts.terms]
    sums += [parts.bigrams, parts.coverage, parts.lead, parts.phrase, parts.char_ngrams, parts.top_similarity, parts.brevity]
    assert parts.brevity > 0.0 and "brevity" in repr(parts)
    assert wire.unstructure(parts)["brevity"] == parts.brevity
    assert math.isclose(math.fsum(sums), result.chunk_score) and parts.score == result.chunk_score
print(index.explain("when do cats purr", 1).brevity > index.explain("when do cats purr", 0).brevity)
"""


def test_scoring_stage_takes_part_in_every_search_and_explanation(
    extend: Callable[..., Extended],
) -> None:
    """A new stage changes two files; its field of the explanation is serialized and displayed."""
    copy = extend("a scoring stage", "a field of an explanation")
    copy.add("retrieval/stages/brevity.py", STAGE)
    copy.change(
        "types/explanation.py",
        "    top_similarity: float = 0.0\n",
        "    top_similarity: float = 0.0\n    brevity: float = 0.0\n",
    )
    label = '["the reranker", ["reranker"]],'
    copy.change("serve/static/page/passages.js", label, f'{label} ["brevity", ["brevity"]],')
    assert copy.run(USE_STAGE) == "True\n"


USE_OPTION = """
from pathlib import Path
from relevance_gen import ChunkIndex, cli, search
texts = ["Cats purr and then they sleep.", "Cats purr."]
assert len(search("cats", texts)) == 2
assert [r.original_index for r in search("cats", texts, max_chunk_chars=12)] == [1]
assert len(ChunkIndex(texts).search("cats", max_chunk_chars=12)) == 1
assert "max_chunk_chars" in str(__import__("inspect").signature(search))
Path("texts.txt").write_text("Cats purr and then they sleep.")
print(cli.main(["search", "cats", "texts.txt", "--max-chunk-chars", "12"]))
print(cli.main(["search", "cats", "texts.txt", "--max-chunk-chars", "90", "--json"]))
"""


def test_search_option_in_four_files_works_in_python_over_http_and_on_the_command_line(
    extend: Callable[..., Extended],
) -> None:
    """A new option is an argument of functions, a field in JSON, and a flag; four files change."""
    copy = extend("a search option")
    params, option = "retrieval/params.py", "max_chunk_chars: int"
    default = f"{option} = _option(0, checks.integer(0))"
    copy.insert(params, r"\n    correct_spelling: bool = ", f"\n    {default}\\g<0>")
    documented = "        max_chunk_chars: return only shorter chunks; 0: all chunks.\n"
    copy.insert(params, r"        correct_spelling: replace", f"{documented}\\g<0>")
    copy.insert(params, r'(class SearchOptions\(.*\):\n    """.*\n\n)', rf"\1    {option}\n")
    copy.insert(
        "retrieval/answer.py",
        r"\n    if params\.true_order:",
        "\n    if params.max_chunk_chars:"
        "\n        (rows,) = segments.extract_features("
        "FeatureRequest(ranking.positions, (STORED_FIELDS,)))"
        "\n        short = [len(row.text) <= params.max_chunk_chars for row in rows.rows]"
        "\n        ranking = ranking.take(np.flatnonzero(short))"
        r"\g<0>",
    )
    flag = 'add("--max-chunk-chars", type=int, default=0, help="maximum length of a result")'
    copy.insert("cli/search.py", r'add\(\s+"--lines"', rf"{flag}\n    \g<0>")
    argument = "correct_spelling=args.correct_spelling,"
    addition = "max_chunk_chars=args.max_chunk_chars,"
    copy.change("cli/search.py", argument, f"{argument} {addition}")
    assert copy.run(USE_OPTION).endswith("\n0\n")
    program = ("-P", *REAL)
    with Server("--model", "none", program=program, PYTHONPATH=str(copy.folder)) as server:
        body = {"query": "cats", "chunk_txts": ["Cats purr and sleep.", "Cats purr."]}
        assert len(server.call("POST", "/search", body, KEYED).json["results"]) == 2
        body["max_chunk_chars"] = 12
        assert len(server.call("POST", "/search", body, KEYED).json["results"]) == 1
        refused = server.call("POST", "/search", body | {"max_chunk_chars": -1}, KEYED)
        assert refused.json["error"]["field"] == "max_chunk_chars"


WEIGHTING = """
BINARY: Final = evolve(
    COSINE,
    name="binary",
    needs_all_terms=False,
    saturate=lambda tf: np.ones(tf.size),
    denominators=lambda segment, _: np.sqrt(np.maximum(segment.n_occurrences, 1)),
)

"""
USE_WEIGHTING = """
from pathlib import Path
from relevance_gen import ChunkIndex, cli, search
texts = ["cat cat cat cat dog", "cat dog", "bird"]
assert [one.original_index for one in search("cat", texts, true_order=False, weighting="binary")] == [1, 0]
index = ChunkIndex(texts, weighting="binary")
index.save("kept")
assert ChunkIndex.load("kept").search("cat") == index.search("cat") == search("cat", texts, weighting="binary")
Path("texts.txt").write_text("A cat sleeps.")
print(cli.main(["search", "cat", "texts.txt", "--weighting", "binary", "--json"]))
"""


def test_weighting_is_accepted_by_search_saved_indexes_and_command_line(
    extend: Callable[..., Extended],
) -> None:
    """A new weighting is selected by its name in search, in saved indexes and on the command line."""
    copy = extend("a weighting")
    weighting = "retrieval/weighting.py"
    copy.change(weighting, "_WEIGHTINGS: Final", f"{WEIGHTING.lstrip()}_WEIGHTINGS: Final")
    copy.change(weighting, "in (PIVOTED, COSINE)", "in (PIVOTED, COSINE, BINARY)")
    copy.change(
        "types/search.py", 'Literal["pivoted", "cosine"]', 'Literal["pivoted", "cosine", "binary"]'
    )
    assert copy.run(USE_WEIGHTING).endswith("\n0\n")


ADAPTER = '''
"""Search with words, and return positions."""

from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.serve.services.search import SearchTask


def read(body):
    """Read ``{"words": …, "lines": […]}``."""
    if not isinstance(body, dict) or not isinstance(body.get("lines"), list):
        raise InvalidRequestError("is required", "lines")
    task = SearchTask(SearchParams(body.get("words"), true_order=False), body["lines"], path="lines")
    return task, lambda response: [result.original_index for result in response.results]
'''


def test_http_interface_has_keys_errors_and_metrics(extend: Callable[..., Extended]) -> None:
    """A new adapter is served under its path, with keys, errors and metrics."""
    copy = extend("an HTTP interface of other software")
    copy.add("serve/adapters/places.py", ADAPTER)
    routes = "serve/routes.py"
    adapters = "import cohere, mcp, ollama, own"
    copy.change(routes, adapters, f"{adapters}, places")
    row = '    Route("POST", "/places", search.search, places.read, pool="search", key="always"),'
    copy.change(routes, _ROUTES, f"{_ROUTES}\n{row}")
    program = ("-P", *REAL)  # without the current folder, so that Python imports the copy
    with Server("--model", "none", program=program, PYTHONPATH=str(copy.folder)) as server:
        answer = server.call(
            "POST", "/places", {"words": "cats", "lines": ["Dogs bark.", "Cats purr."]}, KEYED
        )
        assert (answer.status, answer.json) == (200, [1])
        refused = server.call(
            "POST", "/places", {"words": "cats", "lines": ["Dogs bark.", " "]}, KEYED
        )
        assert (refused.status, json.loads(refused.body)["error"]["field"]) == (
            400,
            "lines[1].text",
        )
        series = 'http_requests_total{endpoint="places",status="200"}'
        assert eventually(lambda: server.metric(series) == 1)  # counted when the answer is sent


OPERATION = '''
"""Handler that counts chunks."""

from relevance_gen.serve.http.resources import costs


def read(body):
    """Read ``{"chunk_txts": […]}``."""
    return body["chunk_txts"], lambda count: {"num_chunks": count}


async def count(call):
    """Count chunks."""
    async with call.reserve(costs.COUNT) as reservation:
        chunks, present = await reservation.read_body()
        n_bytes = costs.COUNT.of(chunk=len(chunks))
        answer = await reservation.answer(lambda: len(chunks), present, n_bytes)
        return answer.response
'''


def test_http_operation_is_admitted_counted_and_limited(extend: Callable[..., Extended]) -> None:
    """A new operation is admitted, counted and limited in memory like the existing operations."""
    copy = extend("an HTTP operation")
    copy.add("serve/handlers/counting.py", OPERATION)
    table = "EMBEDDING: Final = Cost("
    copy.change("serve/http/resources/costs.py", table, f"COUNT: Final = Cost(chunk=1000)\n{table}")
    routes = "serve/routes.py"
    imports = "from relevance_gen.serve.handlers import generation,"
    copy.change(routes, imports, f"{imports} counting,")
    row = '    Route("POST", "/count", counting.count, counting.read, pool="search", key="always"),'
    copy.change(routes, _ROUTES, f"{_ROUTES}\n{row}")
    program = ("-P", *REAL)
    flags = ("--model", "none", "--max-buffered-bytes", "4MiB", "--max-body-bytes", "1MiB")
    with Server(*flags, program=program, PYTHONPATH=str(copy.folder)) as server:
        answer = server.call("POST", "/count", {"chunk_txts": ["a", "b"]}, KEYED)
        assert (answer.status, answer.json) == (200, {"num_chunks": 2})
        assert server.call("POST", "/count", {"chunk_txts": []}).status == 401
        assert server.call("POST", "/count", {"chunk_txts": ["a"] * 5000}, KEYED).status == 413
        series = 'http_requests_total{endpoint="count",status="200"}'
        assert eventually(lambda: server.metric(series) == 1)


FORMAT = '''
"""Extract the text of files whose characters are in reverse order."""


def extract(content, found):
    """Add the text as one part."""
    found.add({}, content.removeprefix(b"%BACKWARDS").decode()[::-1])
'''


def test_document_format_is_searched_by_the_command_line(
    extend: Callable[..., Extended], tmp_path: Path
) -> None:
    """A new format is recognized by its first bytes, and searched by the command line."""
    copy = extend("a document format")
    copy.add("documents/backwards.py", FORMAT)
    extraction = "documents/extraction.py"
    copy.change(
        extraction,
        "from relevance_gen.documents.charset",
        "from relevance_gen.documents import backwards\nfrom relevance_gen.documents.charset",
    )
    copy.change(extraction, 'Literal["PDF", ', 'Literal["Backwards", "PDF", ')
    copy.change(
        extraction,
        "    if content.startswith(_OLD_OFFICE)",
        '    if content.startswith(b"%BACKWARDS"):\n        return "Backwards"\n    if content.startswith(_OLD_OFFICE)',
    )
    copy.change(
        extraction,
        '    "HTML": _extract_html,',
        '    "HTML": _extract_html,\n    "Backwards": backwards.extract,',
    )
    (tmp_path / "island.bwd").write_bytes(
        b"%BACKWARDS" + "The ferry leaves at seven."[::-1].encode()
    )
    script = 'from relevance_gen import cli; print(cli.main(["search", "ferry", "island.bwd", "--json"]))'
    assert "The ferry leaves at seven." in copy.run(script)
