"""Parsing the output of sixteen model families, split at arbitrary positions."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relevance_gen.generation.output_parsing.output_parser import (
    OutputFormat,
    OutputParser,
    ReasoningTokenCounter,
    merge_parts,
)
from relevance_gen.generation.output_parsing.tool_call_arguments import UnquotedArguments, as_json
from relevance_gen.generation.output_parsing.tool_call_formats import (
    HERMES,
    REASONING_FORMATS,
    TOOL_CALL_FORMATS,
    reasoning_format_of,
    tool_call_format_of,
)

TOOLS = frozenset({"search", "get_weather", "special_function"})
SCHEMAS = {
    name: {"type": kind} for name, kind in (("q", "string"), ("city", "string"), ("n", "number"))
}
SCHEMAS |= {"on": {"type": "boolean"}, "o": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
SIGNS = {
    "harmony": "<|channel|>commentary functions. <|message|>",
    "mistral": "[TOOL_CALLS] [/INST]",
    "mistral with arguments": "[TOOL_CALLS] [ARGS] [THINK]",
    "deepseek r1": "<｜tool▁calls▁begin｜> ```json <think>",
    "deepseek v3.1": "<｜tool▁calls▁begin｜> <think>",
    "granite": "<|tool_call|> <think>",
    "hermes": "<tool_call> <think>",
    "llama": '"parameters" <|start_header_id|>',
    "command": "<|START_ACTION|> <|START_THINKING|>",
    "kimi": "tool_declare <think>",
    "gemma 4": "<|tool_call> call: <|channel>thought",
    "minimax": "<minimax:tool_call> <think>",
    "qwen3-coder": "<tool_call> <function= <think>",
    "seed": "<seed:tool_call> <function= <seed:think>",
    "glm": "<tool_call> <arg_key> <think>",
}
"""What stands in the templates of each family."""


def form_of(family, *, is_thinking=False):
    """Return the output format of a model family."""
    return OutputFormat(
        TOOLS,
        tool_call_format_of(SIGNS[family]),
        reasoning_format_of(SIGNS[family]),
        is_thinking,
        dict.fromkeys(TOOLS, SCHEMAS),
    )


def read(form, *cuts):
    """Return the parts of a turn whose text arrives in these pieces."""
    reader = OutputParser(form, "nonce")
    pieces = [piece for cut in cuts for piece in reader.push(cut)]
    pieces += reader.end()
    assert all(piece.text or piece.kind == "tool_call" for piece in pieces)
    return merge_parts(pieces)


def joined_parts(parts):
    """Return kinds or tool names, and texts of parts."""
    return [(part.name or part.kind, part.text) for part in parts]


def text(said):
    """Return a text part."""
    return ("text", said)


def thought(said):
    """Return a reasoning part."""
    return ("reasoning", said)


TURNS = json.loads((Path(__file__).parent / "turns.json").read_text())
"""What models of these families write, and the parts that it has: ``text``, ``reasoning``, or a
tool's name.

Sources of what is written so: the tests of the parsers of vLLM and llama.cpp, and the models'
templates.
"""


@pytest.mark.parametrize(
    "turn", TURNS, ids=lambda turn: f"{turn['family']}: {turn['written'][:30]!r}"
)
def test_parser_returns_equal_parts_for_all_splits(turn):
    """The complete text, single characters and all two-way splits give the same parts and ids."""
    written = turn["written"]
    form = form_of(turn["family"], is_thinking=turn["family"] == "deepseek r1")
    whole = read(form, written)
    assert [list(part) for part in joined_parts(whole)] == turn["parts"]
    assert read(form, *written) == whole
    for place in range(len(written)):
        assert read(form, written[:place], written[place:]) == whole


def test_starts_with_reasoning_needs_no_opening_marker():
    """The turn starts with reasoning, and is all reasoning without a closing marker."""
    form = form_of("hermes", is_thinking=True)
    assert joined_parts(read(form, "\nHm.\n</think>\n\nYes.")) == [thought("Hm."), text("Yes.")]
    assert joined_parts(read(form, "Hm. <tool_call>")) == [thought("Hm. <tool_call>")]


def test_format_without_tools_and_reasoning_returns_text():
    """An empty format returns the text unchanged."""
    written = '<think>a</think><tool_call>{"name": "search", "arguments": {}}</tool_call> '
    assert joined_parts(read(OutputFormat(), written)) == [text(written)]
    assert joined_parts(
        read(OutputFormat(frozenset(), None, reasoning_format_of(SIGNS["hermes"])), written)
    ) == [
        thought("a"),
        text(written[len("<think>a</think>") :]),
    ]


def test_call_ids_are_unique():
    """An id has nine characters, and differs between calls and turns."""
    written = '<tool_call>{"name": "search", "arguments": {}}</tool_call>' * 3
    calls = [
        part
        for nonce in "ab"
        for part in OutputParser(form_of("hermes"), nonce).push(written)
        if part.id
    ]
    assert len({call.id for call in calls}) == 6
    assert all(len(call.id) == 9 and call.id.isalnum() for call in calls)


def test_output_format_can_be_pickled():
    """A worker in a different process gets an equal format with its request."""
    form = form_of("harmony")
    assert pickle.loads(pickle.dumps(form)) == form


def test_long_argument_is_streamed():
    """A long text in the arguments is returned as it arrives, before the end of the call."""
    reader = OutputParser(form_of("hermes"), "n")
    reader.push('<tool_call>{"name": "search", "arguments": {"q": "')
    assert [piece.text for piece in reader.push("abc")] == ["abc"]
    assert [piece.text for piece in reader.push('d"}')] == ['d"}']


@pytest.mark.parametrize(
    ("family", "is_thinking", "tokens", "n"),
    [
        ("hermes", False, ["<think>", "Hm", ".", "</think>", "Yes", "."], 4),
        ("hermes", False, ["<thi", "nk>Hm", ".</", "think> Yes"], 3),
        ("hermes", True, ["Hm", ".", "</think>", "Yes"], 3),
        ("hermes", False, ["Yes", "<think>", "Hm"], 0),
        ("hermes", False, ["<think>", "\xc3", "\xa4", "</think>"], 4),
        (
            "harmony",
            False,
            ["<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>assistant", "x"],
            3,
        ),
    ],
)
def test_reasoning_token_counter_counts_between_markers(family, is_thinking, tokens, n):
    """Tokens count from the end of the opening marker to the end of the closing marker, also with split characters."""
    count = ReasoningTokenCounter(form_of(family, is_thinking=is_thinking))
    for token in tokens:
        count.add_token(token.encode("latin-1"))
    assert count.n_tokens == n
    none = ReasoningTokenCounter(OutputFormat(TOOLS, HERMES, None))
    none.add_token(b"<think>")
    assert none.n_tokens == 0


scalars = st.none() | st.booleans() | st.integers() | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)
some_arguments = st.dictionaries(st.text(), values, max_size=3)
some_calls = st.lists(
    st.tuples(st.sampled_from(sorted(TOOLS)), some_arguments), min_size=1, max_size=3
)


def cut(written, places):
    """Split a text at the given positions."""
    ends = [0, *sorted(place for place in places if place < len(written)), len(written)]
    return [written[start:end] for start, end in itertools.pairwise(ends)]


@given(
    place=st.integers(0, len(TOOL_CALL_FORMATS) - 1),
    calls=some_calls,
    ascii_only=st.booleans(),
    spaced=st.booleans(),
    cuts=st.sets(st.integers(0, 200)),
)
def test_rendered_calls_parse_to_the_same_arguments(place, calls, ascii_only, spaced, cuts):
    """Arguments may contain markers, and may be written with any spacing."""
    syntax = TOOL_CALL_FORMATS[place]
    calls = calls[:1] if place == 0 else calls  # gpt-oss calls one tool in a turn
    separators = None if spaced else (",", ":")
    arguments = [
        json.dumps(given, ensure_ascii=ascii_only, separators=separators) for _, given in calls
    ]
    written = syntax.before_calls
    written += syntax.between_calls.join(
        syntax.render_call(name, one) for (name, _), one in zip(calls, arguments, strict=True)
    )
    written += syntax.after_calls
    form = OutputFormat(TOOLS, syntax, None)
    whole = read(form, written)
    if syntax.string_delimiter:  # whose white space is not kept
        arguments = [json.dumps(given, ensure_ascii=ascii_only) for _, given in calls]
    assert joined_parts(whole) == [
        (name, one) for (name, _), one in zip(calls, arguments, strict=True)
    ]
    assert read(form, *cut(written, cuts)) == whole


names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=5)


@given(
    syntax=st.sampled_from([syntax for syntax in TOOL_CALL_FORMATS if syntax.argument_tags]),
    arguments=st.dictionaries(names, values, max_size=3),
    cuts=st.sets(st.integers(0, 200)),
)
def test_tagged_arguments_parse_strings_unchanged_and_values_as_json(syntax, arguments, cuts):
    """Strings keep their line breaks, and may contain tags."""
    tags = syntax.argument_tags
    before, between, after = tags.before_name, tags.before_value, tags.after_value
    schemas = {
        name: {"type": "string" if isinstance(value, str) else ["array", "object"]}
        for name, value in arguments.items()
    }
    said = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in arguments.items()
    }
    assume(not any(after.strip() in value or "\r" in value for value in said.values()))
    written = "\n".join(before + name + between + value + after for name, value in said.items())
    written = (
        syntax.before_calls + syntax.render_call("search", f"{written}\n") + syntax.after_calls
    )
    form = OutputFormat(TOOLS, syntax, None, schemas={"search": schemas})
    whole = read(form, written)
    ((name, read_as),) = joined_parts(whole)
    assert (name, json.loads(read_as)) == ("search", arguments)
    assert read(form, *cut(written, cuts)) == whole


def without_quotes(value):
    """Write a value as Gemma does."""
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return (
                "{"
                + ",".join(f"{name}:{without_quotes(each)}" for name, each in value.items())
                + "}"
            )
        case list():
            return "[" + ",".join(map(without_quotes, value)) + "]"
    return json.dumps(value)


@given(arguments=st.dictionaries(names, values, max_size=3), cuts=st.sets(st.integers(0, 200)))
def test_unquoted_arguments_parse_strings_with_delimiter_prefixes(arguments, cuts):
    """Strings may contain quotation marks, braces and prefixes of the delimiter."""
    written = f"<|tool_call>call:search{without_quotes(arguments)}<tool_call|>"
    assume(
        json.dumps(arguments).count("|>") == 0
        and all(name.isalnum() for name in names_in(arguments))
    )
    form = form_of("gemma 4")
    whole = read(form, written)
    assert [(name, json.loads(read_as)) for name, read_as in joined_parts(whole)] == [
        ("search", arguments)
    ]
    assert read(form, *cut(written, cuts)) == whole


def names_in(value):
    """Yield all names in a value."""
    for each in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from names_in(each)
    if isinstance(value, dict):
        yield from value


@pytest.mark.parametrize(
    ("written", "schema", "json_text"),
    [
        ("5", {"type": "integer"}, "5"),
        ("5", {"type": ["integer", "string"]}, '"5"'),
        ('"5"', {}, '"\\"5\\""'),
        ("None", {"oneOf": [{"anyOf": [{"type": "string"}]}, {"type": ["null"]}]}, "null"),
        (" False ", True, "false"),
        ("NaN", None, '"NaN"'),
        ("[1, x]", {"type": "array"}, '"[1, x]"'),
        ('{"a": 1}', {"$ref": "#"}, '{"a": 1}'),
        ("7", {"type": 7, "anyOf": 7, "oneOf": [7]}, "7"),
    ],
    ids=str,
)
def test_as_json_returns_value_or_string(written, schema, json_text):
    """A JSON value or a Python constant is a value, unless its schema allows a string; an invalid schema is ignored."""
    assert as_json(written, schema) == json_text


WORDS = """
<tool_call> </tool_call> {"name": "arguments": search "search", { } " \\\\ [ ] [TOOL_CALLS] [ARGS] <|python_tag|>
; , <think> </think>
a < <|channel|> analysis <|message|> <|end|> <|start|>assistant to=functions.search <|constrain|>json ```json commentary
<|tool_call>call:search{ q: <|"|> <| " : <tool_call|> <function=search> <parameter=q> </parameter> </function>
<tool_call>search <arg_key> q</arg_key> <arg_value> </arg_value>
"""
words = st.sampled_from([*WORDS.split(), '{"name": "search", "arguments": {', " ", "\n"])


@given(
    parts=st.lists(words, max_size=14),
    cuts=st.sets(st.integers(0, 150)),
    family=st.sampled_from(sorted(SIGNS)),
    is_thinking=st.booleans(),
)
def test_arbitrary_text_parses_equally_for_all_splits(parts, cuts, family, is_thinking):
    """No character of a text without markers is lost."""
    written = "".join(parts)
    form = form_of(family, is_thinking=is_thinking)
    whole = read(form, written)
    assert read(form, *written) == whole
    assert read(form, *cut(written, cuts)) == whole
    assert "".join(part.text for part in read(OutputFormat(), *cut(written, cuts))) == written


def beginning(syntax):
    """Return a call up to the text of its first argument."""
    before = (
        syntax.argument_tags.before_name + "q" + syntax.argument_tags.before_value
        if syntax.argument_tags
        else "{q:" + syntax.string_delimiter
        if syntax.string_delimiter
        else '{"q": "'
    )
    return syntax.before_calls + syntax.before_name + "search" + syntax.before_arguments + before


def test_unquoted_arguments_escape_line_breaks():
    """Unescaped line breaks in a quoted string become JSON escapes."""
    parser = UnquotedArguments('<|"|>')
    text, arguments, is_finished = '{a: "one\n\ttwo"}', "", False
    while not is_finished:
        chunk = parser.read(text)
        text, arguments = text[chunk.n_read :], arguments + chunk.json
        is_finished = chunk.is_finished
    assert json.loads(arguments) == {"a": "one\n\ttwo"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"it\'s", "it's"),
        (r"\$5 or \d+\.", r"\$5 or \d+\."),
        (r"\u00e9, \u00 and \upper", r"é, \u00 and \upper"),
        (r"\" \\ \/ \n \\u", '" \\ / \n \\u'),
        ("a\\\nb", "a\\\nb"),
    ],
)
def test_unquoted_arguments_convert_unknown_escapes(written, meant):
    """The result is JSON for all splits."""
    text = f'{{a: "{written}"}}'
    for cut in range(len(text)):
        parser, arguments, rest = UnquotedArguments('<|"|>'), "", ""
        for part in (text[:cut], text[cut:]):
            rest, is_reading = rest + part, True
            while rest and is_reading:
                chunk = parser.read(rest)
                rest, arguments = rest[chunk.n_read :], arguments + chunk.json
                is_reading = bool(chunk.n_read or chunk.json)
        assert json.loads(arguments) == {"a": meant}


@pytest.mark.parametrize(
    "sign", ["a", "<", ">", '"', "\\", " ", "\n", '<|"', "</parameter", "</arg_value"]
)
def test_parser_time_is_linear_in_the_text(sign):
    """Each character is parsed a constant number of times in arguments, names, reasoning and answers."""
    starts = [(syntax, beginning(syntax)) for syntax in TOOL_CALL_FORMATS]
    starts += [
        (syntax, syntax.before_calls + syntax.before_name + "search" + syntax.before_arguments)
        for syntax in TOOL_CALL_FORMATS
    ]
    starts += [
        (syntax, start + "{q:" + quote)
        for syntax, start in starts
        if syntax.string_delimiter
        for quote in ('"', "")
    ]
    starts += [
        (HERMES, ""),
        (HERMES, "<think>"),
        *((syntax, syntax.before_calls) for syntax in TOOL_CALL_FORMATS),
    ]
    for syntax, start in starts:
        reader = OutputParser(OutputFormat(TOOLS, syntax, REASONING_FORMATS[-1]), "")
        reader.push(start)
        n_held = 0
        for character in sign * (1000 // len(sign)):
            reader.push(character)
            n_held = max(n_held, len(reader._buffer))
        assert n_held < 700


def test_long_text_parses_like_its_parts():
    """A long text is parsed in batches, and a marker may be split between two batches."""
    form = OutputFormat(frozenset(["f"]), HERMES)
    reader = OutputParser(form, "")
    text = (
        'a <tool_call> {"name": "f", "arguments": {"x": '
        + "[1], " * 2000
        + "2}}</tool_call>"
        + "b" * 5000
    )
    pieces = reader.push(text * 2)
    assert max(len(piece.text) for piece in pieces) <= 1 << 12
    parts = merge_parts([*pieces, *reader.end()])
    assert [part.kind for part in parts] == ["text", "tool_call"] * 2 + ["text"]
    assert [len(part.text) for part in parts] == [1, 10_008, 5001, 10_008, 5000]


def test_formats_are_selected_by_template_markers():
    """The markers of each family select its row, and a template without markers selects none."""
    places = [0, 2, 1, 3, 4, 5, 6, 7, *range(8, len(TOOL_CALL_FORMATS))]
    assert [
        TOOL_CALL_FORMATS.index(tool_call_format_of(signs)) for signs in SIGNS.values()
    ] == places
    assert tool_call_format_of("{{ messages }}") is None
    assert reasoning_format_of("{{ messages }}") is None
    assert reasoning_format_of("<think>") is REASONING_FORMATS[-1]
