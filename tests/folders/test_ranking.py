"""Tests of file ranking by best chunks, file names and definitions."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, FolderIndex, InvalidRequestError
from relevance_gen.folders import identifiers as names
from relevance_gen.folders.file_ranking import QueryIdentifiers, rank_files
from relevance_gen.folders.identifiers import CodeDefinition, FileName, definitions, name_parts
from tests.retrieval.test_cross_encoder import HashReranker, sum_of
from tests.retrieval.test_dense_fusion import LetterEncoder

PARTS = st.sampled_from(["get", "user", "users", "session", "store", "s", "getuser"])
DEFINITIONS = st.builds(
    lambda parts, is_type, level: CodeDefinition("_".join(parts), tuple(parts), is_type, level),
    st.lists(PARTS, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([1.0, 0.8, 0.3]),
)
CHUNKS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0.01, 1.0), st.lists(DEFINITIONS, max_size=3)),
    min_size=1,
)


def sums(
    asked: QueryIdentifiers,
    chunks: list[tuple[int, float, list[CodeDefinition]]],
    names: list[FileName],
) -> list[float]:
    """Return the score S of each file, computed from the formula."""
    best = chunks[0][1]
    totals = []
    for number, name in enumerate(names):
        own = [chunk for chunk in chunks if chunk[0] == number]
        shares = [score / best for _, score, _ in own]
        total = shares[0] + 0.3 * sum(0.7 ** (k - 2) * c for k, c in enumerate(shares[1:12], 2))
        match = asked.match(name.parts)
        total += 1.5 * match.root_recall * match.precision**2
        for is_type in (True, False):
            defined = [one for *_, some in own for one in some if one.is_type == is_type]
            matches = [(asked.match(one.parts), one) for one in defined]
            total += 0.8 * max(
                (match.root_recall * match.precision * one.level for match, one in matches),
                default=0.0,
            )
            total += 0.6 * max(
                (asked.exact(one.name) * one.level for match, one in matches if match.root_recall),
                default=0.0,
            )
        totals.append(total * (0.4 if name.is_test and not asked.asks_for_tests else 1.0))
    return totals


@given(
    CHUNKS,
    st.sampled_from(
        ["get user", "get_user", "where are sessions stored", "tests of the user store"]
    ),
)
def test_file_scores_equal_formula(
    chunks: list[tuple[int, float, list[CodeDefinition]]], question: str
) -> None:
    """The best file has the score of the best chunk; other files have their share of it."""
    numbers = sorted({number for number, *_ in chunks})
    chunks = sorted(
        ((numbers.index(number), *rest) for number, *rest in chunks), key=lambda chunk: -chunk[1]
    )  # type: ignore[misc]
    names = [
        FileName.of(path)
        for path in ("user.py", "src/session/__init__.py", "tests/a.py", "b.py")[: len(numbers)]
    ]
    asked = QueryIdentifiers(question, {"user": 2.0, "get": 0.5})
    ranked = rank_files(
        asked,
        np.array([score for _, score, _ in chunks]),
        np.array([number for number, *_ in chunks]),
        names,
        [defined for *_, defined in chunks],
    )
    totals = sums(asked, chunks, names)
    best_of = [
        max(ranked.scores[at] for at, chunk in enumerate(chunks) if chunk[0] == one)
        for one in range(len(names))
    ]
    np.testing.assert_allclose(best_of, [chunks[0][1] * total / max(totals) for total in totals])
    np.testing.assert_allclose(np.add.reduce(ranked.shares), ranked.scores)
    assert ranked.scores.min() > 0.0
    assert ranked.scores.max() == chunks[0][1]


@pytest.mark.parametrize(
    ("extension", "text", "names"),
    [
        ("py", "class HTTPServer(Base):\n    def read_all(self):\n", {"HTTPServer": 1.0, "read_all": 0.8}),
        ("rs", "pub(crate) struct Pool<T> {}\nimpl<T> Drop for Pool<T> {}\nfn go() {}", {"Pool": 1.0, "go": 1.0}),
        ("c", "#define SIZE 3\nstatic int uv__run(loop_t* loop) {\nstruct tm *when;\n", {"SIZE": 0.7, "uv__run": 1.0}),
        ("ts", "export const limit = 3\nclass A {\n  async load(x: T): Promise<void> {\n", {"limit": 0.7, "load": 0.8}),
        ("js", "res.json = function json(obj) {\n", {"json": 1.0}),
        ("go", "func (e *Engine) Run(addr ...string) error {\n", {"Run": 1.0}),
        ("java", "  public static <T> List<T> listOf(T... all) {\n", {"listOf": 0.8}),
        ("hs", "lookUp :: Key -> Maybe Value\n", {"lookUp": 1.0}),
        ("", "deploy_all() {\n", {"deploy_all": 1.0}),
        ("txt", "for the type of the thing", {}),
    ],
)  # fmt: skip
def test_definitions_have_names_and_levels(
    extension: str, text: str, names: dict[str, float]
) -> None:
    """Definitions are found in many languages, with the level of their indentation."""
    found = {definition.name: definition.level for definition in definitions(text, extension)}
    assert {name: found.get(name) for name in names} == names
    assert names or not found


@pytest.mark.parametrize(
    "piece", ["<", "(", "[ ", "\t", "a ", "a.", "class ", "public ", "@a(", "x<", "def a", "\n "]
)
@pytest.mark.parametrize("extension", ["ts", "cpp", "java", "py"])
def test_definitions_of_hostile_text_is_fast(piece: str, extension: str) -> None:
    """No pattern scans a text repeatedly; cubic work would take hours."""
    definitions(piece * (200_000 // len(piece)), extension)


def test_definitions_of_long_chunk_are_not_cached() -> None:
    """Definitions of long chunks are found, but do not fill the cache."""
    before = names._definitions.cache_info().currsize
    assert definitions("def purr(): pass\n" * 500, "py") == definitions("def purr(): pass", "py")
    assert names._definitions.cache_info().currsize == before + 1


def test_macro_definition_is_function() -> None:
    """Keywords that define functions or macros never define a type."""
    text = "defmodule Plug do\n  defmacro wrap(x) do\n  defmacrop keep(x) do\n  def go do\n"
    assert {definition.name for definition in definitions(text, "ex") if definition.is_type} == {
        "Plug"
    }
    assert {
        definition.name for definition in definitions(text, "ex") if not definition.is_type
    } == {
        "wrap",
        "keep",
        "go",
    }


def test_file_name_classifies_path() -> None:
    """A package file takes the name of its folder; test files follow language conventions."""
    assert (
        FileName.of("src/HttpServer/__init__.py").parts
        == ("http", "server")
        == name_parts("HTTPServer")[:2]
    )
    assert all(FileName.of(path).is_test for path in ("tests/a.py", "a_test.go", "src/a.spec.ts"))
    assert not any(
        FileName.of(path).is_test
        for path in ("testing.py", "x/test_functions.bash", "contest/a.py")
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a small repository."""
    files = {
        "src/session.py": "class SessionStore:\n    def save(self, data):\n        return data\n",
        "src/app.py": "session session session store\n" * 4,
        "src/loader.py": "import session\n\ndef load():\n    return SessionStore()\n",
        "tests/test_session.py": "class TestSessionStore:\n    def test_session_store(self):\n        store session\n",
        "README.md": "# Sessions\n\nA session is kept in a store.\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_definition_ranks_file_first(root: Path) -> None:
    """The file that defines the name is first; its test file is first if the query mentions tests."""
    index = FolderIndex(root, cache=False)
    for question in ("SessionStore", "session store"):
        assert index.search(question, true_order=False)[0].metadata["path"] == "src/session.py"
    assert (
        index.search("tests of SessionStore", true_order=False)[0].metadata["path"]
        == "tests/test_session.py"
    )


def test_search_by_file_returns_one_result_per_file(root: Path) -> None:
    """Each file has one result with a collapsed count; with `by_file=False` all passages return."""
    index = FolderIndex(root, cache=False, max_chars=30)
    response = index.search("session store", true_order=False)
    paths = [result.metadata["path"] for result in response]
    assert len(set(paths)) == len(paths) > 3
    assert max(result.num_collapsed for result in response) == 3
    assert all(0.0 <= result.chunk_score <= 1.0 for result in response)
    passages = FolderIndex(root, cache=False, max_chars=30, by_file=False)
    chunks = ChunkIndex(list(passages.snapshot().index.chunks))
    assert [one.chunk_score for one in passages.search("session store")] == [
        one.chunk_score for one in chunks.search("session store")
    ]
    with pytest.raises(InvalidRequestError, match="by_file must be True or False, got 1"):
        FolderIndex(root, by_file=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{"encoder": LetterEncoder()}, {"reranker": HashReranker()}, {}])
def test_explanation_with_models_sums_to_score(root: Path, more: dict[str, Any]) -> None:
    """With encoder and reranker the parts of the explanation add up to the score."""
    index = FolderIndex(root, cache=False, max_chars=30)
    models: dict[str, Any] = more or {
        "encoder": LetterEncoder(),
        "reranker": HashReranker(),
        "rerank_top_n": 2,
    }
    response = index.search("SessionStore save", true_order=False, **models)
    assert response != index.search("SessionStore save", true_order=False)
    for result in response:
        explanation = index.explain("SessionStore save", result.original_index, **models)
        assert explanation.score == result.chunk_score
        assert math.isclose(sum_of(explanation), explanation.score, abs_tol=1e-12)
        assert bool(explanation.semantic) == ("encoder" in models)


def test_reranker_orders_files(root: Path) -> None:
    """The reranker reads the best passages with file names and determines the order of files."""
    index = FolderIndex(root, cache=False, max_chars=30)
    found = index.search("session store", true_order=False)
    assert len(found) > 1
    last, reranker = found[-1], HashReranker()
    index.search("session store", reranker=reranker)
    (of_last,) = {text for text in reranker.read if text.endswith(f"\n{last.chunk_txt}")}
    assert last.metadata["path"].rpartition("/")[2].rpartition(".")[0] in of_last
    reported = dict.fromkeys(reranker.read, 0.25) | {of_last: 0.75}
    response = index.search("session store", true_order=False, reranker=HashReranker(reported))
    assert (response[0].metadata["path"], response[0].chunk_score) == (last.metadata["path"], 0.75)
    assert {result.chunk_score for result in response[1:]} == {0.25}
    assert response.confidence == found.confidence


def test_explanation_sums_to_score(root: Path) -> None:
    """The parts of the explanation, including the file name, add up to the score."""
    index = FolderIndex(root, cache=False, max_chars=30)
    for result in index.search("SessionStore save", true_order=False):
        explanation = index.explain("SessionStore save", result.original_index)
        assert explanation.score == result.chunk_score
        assert math.isclose(sum_of(explanation), explanation.score, rel_tol=1e-9)
        if result.metadata["path"] == "src/session.py":
            assert (
                min(explanation.file_name, explanation.defined_names, explanation.exact_identifiers)
                > 0.0
            )


def test_script_without_extension_has_definitions_in_any_folder(tmp_path: Path) -> None:
    """A dot in the name of a folder is not the beginning of a file's extension."""
    text = "deploy_all() {\n  rsync site\n}\n"
    for folder in ("tools", "tools.d"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "deploy").write_text(text)
    index = FolderIndex(tmp_path, cache=False)
    parts = [index.explain("deploy_all", position).defined_names for position in range(2)]
    assert parts[0] == parts[1] > 0.0
