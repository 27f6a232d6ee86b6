"""The table of docs/architecture.md is true: to add something, one touches the files that it names, and no others.

Each test makes a copy of the library, changes it there as somebody would who extends it, and uses the copy in a process
of its own.
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
_NAMED = re.compile(r"`([\w/]+(?:\.py|/))`")


def allowed(to_add: str) -> list[str]:
    """Return the files and folders that the table names for what is to be added."""
    table = (
        (ROOT / "docs" / "architecture.md")
        .read_text(encoding="utf-8")
        .split("## Where does it go?")[1]
    )
    (row,) = [line.split("|") for line in table.splitlines() if line.startswith(f"| {to_add} |")]
    return _NAMED.findall(row[2])


class Extended:
    """A copy of the library, in which only some files may be added or changed."""

    def __init__(self, folder: Path, to_add: str) -> None:
        self.folder = folder
        self._allowed = allowed(to_add)
        shutil.copytree(
            ROOT / "relevance_gen",
            folder / "relevance_gen",
            ignore=shutil.ignore_patterns("__pycache__"),
        )

    def _path(self, name: str) -> Path:
        assert any(
            name == one or (one.endswith("/") and name.startswith(one)) for one in self._allowed
        ), name
        return self.folder / "relevance_gen" / name

    def add(self, name: str, code: str) -> None:
        """Add a file."""
        path = self._path(name)
        assert not path.exists()
        path.write_text(code, encoding="utf-8")

    def change(self, name: str, old: str, new: str) -> None:
        """Change what stands in a file once."""
        path = self._path(name)
        code = path.read_text(encoding="utf-8")
        assert code.count(old) == 1, f"{old!r} stands {code.count(old)} times in {name}"
        path.write_text(code.replace(old, new), encoding="utf-8")

    def run(self, script: str) -> str:
        """Return what a script prints that uses the copy."""
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
def extend(tmp_path: Path) -> Callable[[str], Extended]:
    """Return a function that copies the library to add something to it."""
    return lambda to_add: Extended(tmp_path, to_add)


STAGE = '''
"""Prefer short chunks."""

from relevance_gen.retrieval.ranking.features import FeatureSpec, NumericFeatures
from relevance_gen.retrieval.ranking.stage import N_STAGE_CANDIDATES, Stage


class ChunkLength(FeatureSpec):
    """Number of words of chunks."""

    def extract(self, batch):
        return NumericFeatures(batch.segment.n_occurrences[batch.chunk_ords][None])


class Brevity(Stage):
    """Adds a tenth divided by the number of words."""

    parts = ("brevity",)
    n_best = N_STAGE_CANDIDATES

    features = ChunkLength()

    def score(self, table, segments):
        rows = table.stage_rows
        table.add(self.parts, rows, 0.1 / table.extract(self.features, rows, segments).values)
'''
USE_STAGE = """
import math, pickle
from relevance_gen import ChunkIndex, search
texts = ["Cats purr and then they sleep.", "Cats purr.", "Dogs bark."]
index = ChunkIndex(texts[:1])
index.add(texts[1:])
found = index.search("when do cats purr")
assert found == pickle.loads(pickle.dumps(index)).search("when do cats purr") == search("when do cats purr", texts)
for result in found:
    told = index.explain("when do cats purr", result.original_index)
    shares = [share.contribution for share in told.terms]
    shares += [told.bigrams, told.coverage, told.lead, told.phrase, told.char_ngrams, told.top_similarity, told.brevity]
    assert told.brevity > 0.0 and "brevity" in repr(told)
    assert math.isclose(math.fsum(shares), result.chunk_score) and told.score == result.chunk_score
print(index.explain("when do cats purr", 1).brevity > index.explain("when do cats purr", 0).brevity)
"""


def test_a_part_of_the_score(extend: Callable[[str], Extended]) -> None:
    """A new stage takes part in every search, however chunks are cut, and in every explanation."""
    copy = extend("a scoring stage")
    copy.add("retrieval/stages/brevity.py", STAGE)
    weighting = "retrieval/weighting.py"
    stage_list = "[Proximity.of(terms)]"
    copy.change(weighting, stage_list, "[Proximity.of(terms), Brevity()]")
    stages = "from relevance_gen.retrieval.stages"
    copy.change(
        weighting, f"{stages}.char_ngrams", f"{stages}.brevity import Brevity\n{stages}.char_ngrams"
    )
    copy.change(
        "types/explanation.py",
        "    top_similarity: float = 0.0\n",
        "    top_similarity: float = 0.0\n    brevity: float = 0.0\n",
    )
    assert copy.run(USE_STAGE) == "True\n"


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


def test_a_weighting(extend: Callable[[str], Extended]) -> None:
    """A new weighting is known by its name to search, to saved indexes and to the command line."""
    copy = extend("a weighting")
    weighting = "retrieval/weighting.py"
    copy.change(weighting, "_WEIGHTINGS: Final", f"{WEIGHTING.lstrip()}_WEIGHTINGS: Final")
    copy.change(weighting, "in (PIVOTED, COSINE)", "in (PIVOTED, COSINE, BINARY)")
    copy.change(
        "types/search.py", 'Literal["pivoted", "cosine"]', 'Literal["pivoted", "cosine", "binary"]'
    )
    assert copy.run(USE_WEIGHTING).endswith("\n0\n")


DIALECT = '''
"""Search as nobody else has it: words in, places out."""

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


def test_an_interface(extend: Callable[[str], Extended]) -> None:
    """A new dialect is served under its path, with keys, errors and metrics like any other."""
    copy = extend("an HTTP interface of other software")
    copy.add("serve/adapters/places.py", DIALECT)
    routes = "serve/routes.py"
    copy.change(routes, "import cohere, mcp, own, tei", "import cohere, mcp, own, places, tei")
    row = '    Route("POST", "/places", search.search, places.read, pool="search", key="always"),'
    copy.change(routes, _ROUTES, f"{_ROUTES}\n{row}")
    program = ("-P", *REAL)  # without the current folder, so that the copy is what is found
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


def test_an_http_operation(extend: Callable[[str], Extended]) -> None:
    """A new operation is admitted, counted and limited in memory like the existing operations."""
    copy = extend("an HTTP operation")
    copy.add("serve/handlers/counting.py", OPERATION)
    table = "EMBEDDING: Final = Cost("
    copy.change("serve/http/resources/costs.py", table, f"COUNT: Final = Cost(chunk=1000)\n{table}")
    routes = "serve/routes.py"
    imports = "from relevance_gen.serve.handlers import agents,"
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
"""Take the text out of files that say their letters backwards."""


def extract(content, found):
    """Add the text as one part."""
    found.add({}, content.removeprefix(b"%BACKWARDS").decode()[::-1])
'''


def test_a_format_of_documents(extend: Callable[[str], Extended], tmp_path: Path) -> None:
    """A new format is known by its beginning, and searched by the command line."""
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
        "    if content.startswith(_ZIP)",
        '    if content.startswith(b"%BACKWARDS"):\n        return "Backwards"\n    if content.startswith(_ZIP)',
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
