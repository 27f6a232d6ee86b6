"""Tests of the tools' answers: locations, numbered lines, totals, token budgets, path safety."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, InvalidRequestError, Runner, SearchResponse
from relevance_gen.agents.folders import Folders, escape_path
from relevance_gen.agents.tools import Tools
from relevance_gen.text.token_counting import token_counter
from tests.profiles import costly

COUNT = token_counter(None).count


def tools_for(*folders: Path) -> Tools:
    return Tools(Folders.open([str(folder) for folder in folders]))


def refusal(tools: Tools, name: str, **arguments: Any) -> str:
    with pytest.raises(InvalidRequestError) as refused:
        tools.call(name, arguments)
    return str(refused.value)


def test_search_tool_returns_numbered_lines(project: Path) -> None:
    """The first line is the location, then numbered lines of the file, then the totals."""
    answer = tools_for(project).call(
        "search", {"question": "which method does a request begin with?"}
    )
    first, *lines, last = answer.splitlines()
    place, _, score = first.partition("  ")
    assert place == "src/parser.py:1-7"
    assert 0 < float(score) <= 1
    of_file = (project / "src" / "parser.py").read_text().splitlines()
    shown_lines = [line for line in lines if line.partition("\t")[0].isdecimal()][: len(of_file)]
    assert [line.split("\t", 1)[1] for line in shown_lines] == of_file
    assert [int(line.split("\t")[0]) for line in shown_lines] == [1, 2, 3, 4, 5, 6, 7]
    assert " results shown, " in last or " result shown, " in last
    assert last.split("; ")[1].startswith("3 files searched, confidence ")


def test_search_tool_sees_file_changes(project: Path) -> None:
    """A search after files were written, changed and removed uses their current state."""
    tools = tools_for(project)
    assert "src/parser.py" in tools.call("search", {"question": "parse request"})
    (project / "src" / "parser.py").unlink()
    (project / "src" / "reader.py").write_text("def parse_request(): ...\n")
    answer = tools.call("search", {"question": "parse request"})
    assert "src/reader.py:1-1" in answer
    assert "parser.py" not in answer


def test_folder_and_glob_filter_files(project: Path) -> None:
    """`folder` and `glob` filter search and file list; a filter without matches is an error."""
    tools = tools_for(project)
    question = {"question": "requests about zebras that ripen"}
    assert "README.md" not in tools.call("search", question | {"folder": "src"})
    assert "notes.txt" not in tools.call("search", question | {"glob": "*.md"})
    assert tools.call("files", {"folder": "./src/"}).splitlines()[0] == "src/parser.py"
    assert tools.call("files", {"glob": "!*.md"}).splitlines()[:2] == ["notes.txt", "src/parser.py"]
    assert refusal(tools, "search", question="x", glob="*.rs").startswith(
        "glob matches no file, got '*.rs'; "
    )
    assert refusal(tools, "files", folder="source").startswith(
        "folder matches no file, got 'source'; "
    )


def test_read_tool_returns_requested_lines(project: Path) -> None:
    """The answer has numbered lines, and its last line reports the range and how to continue."""
    tools = tools_for(project)
    answer = tools.call("read", {"path": "src/parser.py", "first_line": 4, "last_line": 5})
    assert answer.startswith("4\tdef parse_request(text):\n5\t    # A request")
    assert answer.splitlines()[-1].startswith("src/parser.py:4-5 of 7 lines, ")
    cut = tools.call("read", {"path": "notes.txt", "max_tokens": 15})
    assert cut.splitlines()[-1].endswith("; go on with first_line=2")
    assert refusal(tools, "read", path="notes.txt", first_line=9).startswith(
        "first_line must be an integer in [1, 3]"
    )
    assert refusal(tools, "read", path="parser.py").endswith("; did you mean src/parser.py?")


@pytest.mark.parametrize(
    "path",
    [
        *(
            "../secret.txt",
            "src/../../secret.txt",
            "/etc/passwd",
            "link.txt",
            "up/secret.txt",
            "up/project/notes.txt",
        ),
        *(
            "",
            ".",
            "/",
            "src",
            "src/parser.py\0",
            "\0",
            "~/x",
            "\ud800",
            "a" * 10_000,
            "file:///etc/passwd",
            "..",
            "\n",
        ),
    ],
)
def test_read_tool_rejects_paths_outside_folders(project: Path, path: str) -> None:
    """Parent references, links, absolute paths and invalid paths are rejected by name."""
    tools = tools_for(project)
    assert refusal(tools, "read", path=path).startswith("path must be ")
    assert "swordfish" not in tools.call("search", {"question": "the password is swordfish"})
    if path.strip("./\n") and path != "src":
        assert refusal(tools, "search", question="x", folder=path).startswith(
            "folder matches no file"
        )


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("search", {}, "question is required"),
        ("search", {"question": " "}, "question must be a string that is not blank, got ' '"),
        ("search", {"question": "a", "topn": 3}, "topn is not a known field; did you mean top_n?"),
        (
            "search",
            {"question": "a", "top_n": "3"},
            "top_n must be an integer in [1, 100], got '3'",
        ),
        (
            "search",
            {"question": "a", "top_n": True},
            "top_n must be an integer in [1, 100], got True",
        ),
        (
            "search",
            {"question": "a", "max_tokens": 0},
            "max_tokens must be an integer in [1, 100000], got 0",
        ),
        (
            "search",
            {"question": "a", "glob": ["*.py"]},
            "glob must be a string, got a list of 1 item",
        ),
        (
            "search",
            {"question": "a", "glob": "/"},
            "glob must be a pattern as in .gitignore, got '/'",
        ),
        (
            "read",
            {"path": "notes.txt", "first_line": 3, "last_line": 2},
            "last_line must be an integer of at least 3",
        ),
        (
            "files",
            {"path": "src"},
            "path is not a known field; the fields are folder, glob, max_tokens",
        ),
    ],
)
def test_tool_with_invalid_argument_returns_error(
    project: Path, name: str, arguments: dict[str, Any], message: str
) -> None:
    """The error names the unknown or invalid argument and its allowed values."""
    assert refusal(tools_for(project), name, **arguments).startswith(message)


def test_folders_with_equal_names_are_numbered(project: Path, tmp_path: Path) -> None:
    """Paths begin with the folder name; a second folder of equal name gets a number."""
    other = tmp_path / "other" / "project"
    other.mkdir(parents=True)
    (other / "stripes.md").write_text("A zebra has stripes.\n")
    tools = tools_for(project, other, project)
    listed = tools.call("files", {}).splitlines()[:-1]
    assert listed == [
        "project/README.md",
        "project/notes.txt",
        "project/src/parser.py",
        "project-2/stripes.md",
    ]
    answer = tools.call("search", {"question": "zebra stripes"})
    assert answer.startswith("project-2/stripes.md:1-1")
    assert "project/README.md" in answer
    assert "README" not in tools.call(
        "search", {"question": "zebra stripes", "folder": "project-2"}
    )
    assert tools.call("read", {"path": "project-2/stripes.md"}).startswith("1\tA zebra")
    expected = "path must be a path that begins with one of project, project-2, got 'README.md'"
    assert refusal(tools, "read", path="README.md") == expected


def test_undecodable_file_name_is_escaped_and_readable(project: Path) -> None:
    """A name with invalid UTF-8 or a line break is shown escaped, and `read` accepts that form."""
    name = b"caf\xe9\n1-2 of.txt"
    Path(os.fsdecode(bytes(project) + b"/" + name)).write_text("Espresso is strong.\n")
    tools = tools_for(project)
    listed = tools.call("files", {"glob": "*.txt"}).splitlines()[0]
    assert listed == r"caf\udce9\n1-2 of.txt"
    assert tools.call("search", {"question": "espresso"}).startswith(listed + ":1-1  ")
    assert tools.call("read", {"path": listed}).startswith("1\tEspresso is strong.")


@costly
@given(st.text())
def test_escape_path_is_printable(path: str) -> None:
    """The escaped path is one printable line; printable paths stay unchanged."""
    assert escape_path(path).isprintable()
    assert escape_path(path) == path or not path.isprintable()


def test_missing_folder_is_reported_by_name(project: Path, tmp_path: Path) -> None:
    """The error has the folder's name, not its location; a restored folder is searched again."""
    other = tmp_path / "other"
    other.mkdir()
    tools = tools_for(project, other)
    shutil.move(project, tmp_path / "away")
    for name, arguments in (
        ("search", {"question": "zebra"}),
        ("files", {}),
        ("read", {"path": "project/notes.txt"}),
    ):
        message = refusal(tools, name, **arguments)
        assert message.startswith("the folder project must be an existing folder")
        assert str(tmp_path) not in message
    shutil.move(tmp_path / "away", project)
    assert "zebra" in tools.call("search", {"question": "zebra"})


def test_empty_folder_returns_no_results(tmp_path: Path) -> None:
    """A search of an empty folder finds 0 results and the file list is empty."""
    (tmp_path / "empty").mkdir()
    tools = tools_for(tmp_path / "empty")
    assert (
        tools.call("search", {"question": "zebra"})
        == "nothing found in 0 files; try other words, or fewer"
    )
    assert tools.call("files", {}) == "0 of 0 files shown, 0 tokens"


def test_read_tool_cuts_long_line(project: Path) -> None:
    """A line longer than the token budget is cut, and the answer reports the cut."""
    (project / "bundle.js").write_text("var a=1;" * 500_000 + "\nlast\n")
    tools = tools_for(project)
    answer = tools.call("read", {"path": "bundle.js", "max_tokens": 50})
    assert answer.splitlines()[-1].endswith("; line 1 is cut")
    assert COUNT(answer.rpartition("\n")[0]) <= 50
    assert tools.call("read", {"path": "bundle.js", "first_line": 2}).startswith(
        "2\tlast\nbundle.js:2-2 of 2 lines"
    )
    assert COUNT(tools.call("search", {"question": "var a", "max_tokens": 80})) < 130


@costly
@given(
    st.lists(st.text(st.sampled_from("ab \n\tzebra,;é漢")), max_size=4),
    st.integers(1, 300),
    st.integers(1, 5),
)
def test_answers_are_within_token_budget(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], most: int, top_n: int
) -> None:
    """All lines except the last are within the budget, and shown lines are lines of the file."""
    root = tmp_path_factory.mktemp("law")
    for number, text in enumerate(texts):
        (root / f"{number}.txt").write_bytes(f"zebra {text}".encode())
    tools = tools_for(root)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search", {"question": "zebra b", "top_n": top_n}),
        ("files", {}),
    ]
    calls += [("read", {"path": f"{number}.txt"}) for number in range(len(texts))]
    for name, arguments in calls:
        answer = tools.call(name, arguments | {"max_tokens": most})
        body = answer.rpartition("\n")[0]
        assert COUNT(body + "\n" if body else "") <= most + 1
        if name == "read" and "cut" not in answer:
            of_file = (root / arguments["path"]).read_bytes().decode().split("\n")
            assert [line.split("\t", 1)[1] for line in body.split("\n")] == of_file[
                : body.count("\n") + 1
            ]


def test_ask_tool_cites_files(project: Path) -> None:
    """With a model there is a fourth tool `ask`, whose answer lists its sources."""
    with Runner() as runner:
        tools = Tools(Folders.open([str(project)]), runner)
        answer = tools.call("ask", {"question": "Where do bananas ripen?"})
    assert "dark" in answer.splitlines()[0]
    assert answer.splitlines()[0].endswith(" [1]")
    assert "[1] notes.txt:1-3" in answer
    assert "ask" not in tools_for(project).by_name


def cows(question: str, top_n: int) -> SearchResponse:
    """Search an index whose metadata is of any kind."""
    chunks = [
        {
            "text": "Cows moo at noon.\nThey sleep.",
            "title": "On cows",
            "metadata": {"path": 5, "first_line": 1},
        },
        {
            "text": "Cows eat grass.",
            "metadata": {"path": "cows/food.md", "first_line": 7, "last_line": 7},
        },
        {
            "text": "Cows drink water.",
            "metadata": {"path": "cows/drink.md", "first_line": "x", "page": 3},
        },
    ]
    return ChunkIndex(chunks).search(question, top_n, true_order=False, spans=True)


def test_search_tool_labels_index_results(project: Path) -> None:
    """A result is labeled by its path, or by index name, position and title if it has no path."""
    tools = Tools(Folders.open([str(project)]), indexes={"farm": cows})
    answer = tools.call("search", {"question": "When do cows moo?", "index": "farm", "top_n": 1})
    head, *lines, last = answer.splitlines()
    assert head.startswith("farm[0]  ")
    assert head.endswith("  On cows")
    assert lines == ["1\tCows moo at noon.", "2\tThey sleep."]
    assert last.split("; ")[1].startswith("index farm searched, confidence ")
    answer = tools.call("search", {"question": "cows grass water", "index": "farm"})
    assert "cows/food.md:7-7  " in answer
    assert "cows/drink.md page 3  " in answer
    assert "farm" not in tools.call("search", {"question": "zebra"})
    assert tools.call("search", {"question": "x", "index": "farm"}).startswith(
        "nothing found in index farm; "
    )


def test_result_heading_is_one_line_without_duplicate_path() -> None:
    """A title equal to the path is omitted, and metadata cannot add a line break."""
    response = ChunkIndex(
        [
            {"text": "Cows moo.", "title": "farm/cows.md", "metadata": {"path": "farm/cows.md"}},
            {
                "text": "Cows sleep.",
                "title": "cows.md",
                "metadata": {"path": "a\nb", "page": "3\n4"},
            },
        ]
    ).search("cows", 2, spans=True)
    heads = Tools(Folders(), indexes={"farm": lambda *_: response}).call(
        "search", {"question": "cows", "index": "farm"}
    )
    first, _, second, _, _ = heads.splitlines()
    assert first == f"farm/cows.md  {response.results[0].chunk_score:.2f}"
    assert second == f"a\\nb page 3\\n4  {response.results[1].chunk_score:.2f}  cows.md"


def test_index_search_reports_omitted_results() -> None:
    """The last line suggests `max_tokens`, not `glob`, because an index has no files."""
    answer = Tools(Folders(), indexes={"farm": cows}).call(
        "search", {"question": "cows", "index": "farm", "max_tokens": 2}
    )
    assert answer.startswith("0 of 3 results shown (raise max_tokens for the others), 0 tokens; ")


def test_search_tool_cuts_long_line_to_best_sentences() -> None:
    """Each result shows text within the budget, from the best sentence, cut between words."""
    filler = " ".join(f"Sheep number {n} sleeps soundly." for n in range(200))
    chunks = [
        f"{filler} The cows moo at noon, and loudly. {filler}",
        f"Cows moo {'and moo ' * 500}",
        "cows漢" * 900,
    ]
    index = ChunkIndex(chunks)
    tools = Tools(
        Folders(), indexes={"farm": lambda query, top_n: index.search(query, top_n, spans=True)}
    )
    for most, n_shown in ((1500, 3), (150, 3), (60, 2)):
        answer = tools.call(
            "search", {"question": "when do cows moo at noon?", "index": "farm", "max_tokens": most}
        )
        *body, last = answer.splitlines()
        assert COUNT("\n".join(body)) <= most
        assert last.startswith(f"{n_shown} of 3 result")
        heads, texts = body[::2], body[1::2]
        assert len(heads) == len(texts) == n_shown
        assert texts[0].startswith("|\t… The cows moo at noon, and loudly. Sheep number 0")
        assert all(text.startswith("|\t") and text.endswith(" …") for text in texts)
    assert texts[0].rstrip(" …").rpartition(" ")[2] in filler.split()


def test_index_search_rejects_file_arguments(project: Path) -> None:
    """`folder` and `glob` cannot be combined with `index`, and unknown index names are rejected."""
    tools = Tools(Folders.open([str(project)]), indexes={"farm": cows, "pets": cows})
    for argument in ("folder", "glob"):
        refused = refusal(tools, "search", question="x", index="farm", **{argument: "src"})
        assert refused == f"{argument} cannot be combined with index; it chooses among files"
    assert (
        refusal(tools, "search", question="x", index="Farm")
        == "index must be one of farm, pets, got 'Farm'"
    )
    refused = refusal(tools_for(project), "search", question="x", index="farm")
    assert refused == "index must not be given: no index is offered here"


def test_tools_without_folder_have_search_only() -> None:
    """Without folders the only tool is `search`, and `index` is required."""
    tools = Tools(Folders(), indexes={"farm": cows})
    assert [*tools.by_name] == ["search"]
    schema = tools.by_name["search"].schema
    assert [*schema["properties"]] == ["question", "top_n", "max_tokens", "index"]
    assert schema["required"] == ["question", "index"]
    assert refusal(tools, "search", question="x") == "index must be one of farm, got ''"
    assert not Tools(Folders()).by_name


def test_ask_tool_labels_index_sources() -> None:
    """The sources of an answer are labeled by their positions in the index."""
    with Runner() as runner:
        tools = Tools(Folders(), runner, {"farm": cows})
        answer = tools.call("ask", {"question": "When do cows moo?", "index": "farm"})
    assert "noon" in answer.splitlines()[0]
    assert "[1] farm[0]" in answer.splitlines()


def test_tool_schemas_have_simple_types_and_few_tokens(project: Path) -> None:
    """No type is a union, each property has a description, and all schemas have few tokens."""
    tools = Tools(Folders.open([str(project)]), indexes={"farm": cows})
    assert tools.by_name["search"].schema["properties"]["index"]["enum"] == ["farm"]
    assert "index" not in tools_for(project).by_name["search"].schema["properties"]
    for tool in tools.by_name.values():
        assert not {"anyOf", "oneOf", "allOf", "$ref"} & set(
            str(tool.schema).replace("'", " ").split()
        )
        assert tool.schema["additionalProperties"] is False
        assert all(
            value["type"] in ("string", "integer") for value in tool.schema["properties"].values()
        )
    assert COUNT(" ".join(f"{tool.purpose} {tool.schema}" for tool in tools.by_name.values())) < 900


def test_null_argument_means_default(project: Path) -> None:
    """Models that fill in all optional arguments send null for those that they do not need."""
    tools = tools_for(project)
    arguments = {"folder": None, "glob": None, "max_tokens": None}
    assert tools.call("files", arguments) == tools.call("files", {})
    assert refusal(tools, "read", path=None) == "path is required"


def test_hints_name_only_offered_parameters(project: Path) -> None:
    """Without indexes an unknown parameter is answered without the parameter `index`."""
    tools = Tools(Folders.open([str(project)]))
    for name in ("x", "indx"):
        with pytest.raises(InvalidRequestError) as raised:
            tools.call("search", {"question": "cats", name: "1"})
        assert raised.value.field == name
        assert "index" not in (raised.value.remedy or "")
    with pytest.raises(InvalidRequestError, match="did you mean glob"):
        tools.call("search", {"question": "cats", "globs": "*.md"})
