"""How models write calls of tools and what they think: a table, chosen from by what stands in a chat template."""

from __future__ import annotations

import functools
import re
from typing import Final, Literal, TypeAlias

from attrs import frozen

Found: TypeAlias = tuple[int, str] | Literal["partly"] | None
"""Where a head ends, and the tool's name in it; or that it may stand there when more of the text is known."""
_WORD: Final = re.compile(
    r'(?:<(?:(?!NAME)[^<>\s])+>|\[/?[A-Z_]+\]|"(?!NAME|ANY)\w+"|NAME|ANY|```|(?:(?!NAME|ANY)[\w.=])+|[^\s\w])~?'
)
_NAME: Final = re.compile(r"[\w.-]{1,128}", re.ASCII)
_SPACE: Final = re.compile(r"\s{0,200}")
_ALIKE: Final = dict.fromkeys(('"arguments"', '"parameters"'), ('"arguments"', '"parameters"'))
_TYPED: Final = '{"type"~:~"function"~,~"name'
"""What an object that begins with a tool's name may begin with, too."""


@functools.cache
def _words(text: str) -> tuple[str, ...]:
    """Return the words of a head."""
    return tuple(_WORD.findall(text.replace('{"name', _TYPED)))


@frozen
class OpeningMarker:
    """What a model writes before it calls, thinks or speaks.

    The `text` is words, with white space between them or none; NAME is a tool's name, ANY any other, and what a tilde
    follows may lack. Behind it one of the texts in `ahead` has to stand: of a call, what its arguments begin with.
    """

    text: str
    leads_to: Literal["call", "thought", "text"] = "call"
    ahead: tuple[str, ...] = ()

    def find(self, text: str, start: int) -> Found:
        """Tell whether it stands at `start` of a text."""
        at, name = start, ""
        for word in _words(self.text):
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if word in ("NAME", "ANY"):
                named = _NAME.match(text, at)
                if at == len(text) or (named is not None and named.end() == len(text)):
                    return "partly"
                if named is None:
                    return None
                name, at = named[0] if word == "NAME" else name, named.end()
                continue
            alike = _ALIKE.get(word, (word.rstrip("~"),))
            if given := next((one for one in alike if text.startswith(one, at)), ""):
                at += len(given)
            elif any(len(text) - at < len(one) and one.startswith(text[at:]) for one in alike):
                return "partly"
            elif not word.endswith("~"):
                return None
        start = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if not self.ahead or text.startswith(self.ahead, start):
            return start if self.leads_to == "call" else at, name
        return "partly" if any(one.startswith(text[start:]) for one in self.ahead) else None


@frozen
class ToolCallFormat:
    """How a family of models calls tools: all that is written, but for what may stand between the words.

    Args:
        signs: a template with all of these words is of this family; but not with one behind an exclamation mark.
        before, between, after: what stands around the name and the arguments of a call.
        opening, separator, closing: what stands around all calls of a turn, and between two.
        others: further heads of calls, which are read and not written.
        tags: what stands before, between and behind the name and the value of an argument, where arguments are no JSON;
            a line's end there belongs to neither, and JSON is read in their place, too.
        mark: what stands around texts in arguments whose names are bare.
    """

    signs: tuple[str, ...]
    before: str
    between: str
    after: str = ""
    opening: str = ""
    separator: str = ""
    closing: str = ""
    others: tuple[str, ...] = ()
    tags: tuple[str, str, str] | None = None
    mark: str = ""

    @property
    def _ends(self) -> tuple[str, ...]:
        """The words that close a call."""
        return _words(
            (self.after.removeprefix("}") if self.before.endswith('"') else self.after)
            + self.closing
        )

    def _head(self, text: str) -> OpeningMarker:
        return OpeningMarker(
            text, ahead=("{",) if self.tags is None else ("{", self.tags[0], self._ends[0])
        )

    @property
    def heads(self) -> tuple[OpeningMarker, ...]:
        """What leads to a call anywhere; what has no word of its own does so only where a turn begins."""
        written = f"{self.opening}{self.before}NAME{self.between}"
        return tuple(map(self._head, (written, *self.others)))

    @property
    def behind(self) -> tuple[OpeningMarker, ...]:
        """What may stand behind a call: another one, or what closes this one."""
        another = (f"{self.before}NAME{self.between}", *self.others)
        return *(self._head(self.separator + text) for text in another), *(
            OpeningMarker(word, "text") for word in self._ends
        )

    def call(self, name: str, arguments: str) -> str:
        """Return a call as it is written."""
        return self.before + name + self.between + arguments + self.after


@frozen
class ReasoningFormat:
    """How a family of models thinks, whose templates have the word `sign`.

    The `heads` lead to thoughts, and to speech where that needs words, too, and the `ends` end them. Where an end
    `is_kept`, it is read as a head again, and heads may stand anywhere; otherwise a turn begins with its thoughts.
    """

    sign: str
    heads: tuple[OpeningMarker, ...]
    ends: tuple[str, ...]
    is_kept: bool = False


_OBJECT: Final = ('{"name": "', '", "arguments": ', "}")
_NAMED: Final = "NAME".join(_OBJECT[:2])
_BEGIN, _SEP, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_ALL_BEGIN, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_FOR, _JSON = "to=functions.NAME", "<|constrain|>~json~<|message|>"
_CHANNELS: Final = ("<|channel|>commentary", "<|channel|>analysis")

HERMES: Final = ToolCallFormat(
    ("<tool_call>", "!<function=", "!<arg_key>"),
    *("<tool_call>\n" + _OBJECT[0], _OBJECT[1], "}\n</tool_call>"),
    separator="\n",
)
_ACTION: Final = [
    id_ + '"tool_name":"NAME","parameters":' for id_ in ('{"tool_call_id":"ANY",', "{")
]
_ONE, _GIVEN = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
_FUNCTION: Final = f"{_ONE}functions.~NAME:ANY{_GIVEN}"
_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
TOOL_CALL_FORMATS: Final = (
    ToolCallFormat(
        *(
            ("<|channel|>", "functions."),
            "<|channel|>commentary to=functions.",
            " <|constrain|>json<|message|>",
        ),
        others=tuple(
            text
            for one in _CHANNELS
            for text in (f"{one} {_FOR}{_JSON}", f"<|start|>~assistant~{_FOR}{one}{_JSON}")
        ),
    ),
    ToolCallFormat(
        ("[TOOL_CALLS]", "[ARGS]"),
        "[TOOL_CALLS]",
        "[ARGS]",
        others=("[TOOL_CALLS]NAME[CALL_ID]ANY[ARGS]~",),
    ),
    ToolCallFormat(
        ("[TOOL_CALLS]",),
        *_OBJECT,
        "[TOOL_CALLS] [",
        ", ",
        "]",
        others=("[TOOL_CALLS]NAME[ARGS]~",),
    ),
    ToolCallFormat(
        *((_ALL_BEGIN, "```json"), f"{_BEGIN}function{_SEP}", "\n```json\n", f"\n```{_END}"),
        *(_ALL_BEGIN, "\n", _ALL_END),
    ),
    ToolCallFormat((_ALL_BEGIN,), _BEGIN, _SEP, _END, _ALL_BEGIN, "", _ALL_END),
    ToolCallFormat(
        ("<|tool_call|>",), *_OBJECT, "<|tool_call|>[", ", ", "]", others=(f"<tool_call>[{_NAMED}",)
    ),
    HERMES,
    ToolCallFormat(
        *(('"parameters"', "<|start_header_id|>"), _OBJECT[0], '", "parameters": ', "}"),
        separator="; ",
        others=(f"<|python_tag|>{_NAMED}",),
    ),
    ToolCallFormat(
        *(("<|START_ACTION|>",), '{"tool_call_id": "0", "tool_name": "', '", "parameters": ', "}"),
        *("<|START_ACTION|>[\n    ", ",\n    ", "\n]<|END_ACTION|>"),
        others=(*("<|START_ACTION|>[" + text for text in _ACTION), *_ACTION),
    ),
    ToolCallFormat(
        *(
            ("tool_declare",),
            f"{_ONE}functions.",
            f":0{_GIVEN}",
            "<|tool_call_end|>",
            _SECTION,
            "",
            _SECTION_END,
        ),
        others=(_SECTION + _FUNCTION, _FUNCTION),
    ),
    ToolCallFormat(
        ("<|tool_call>", "call:"), "<|tool_call>call:", "", "<tool_call|>", mark='<|"|>'
    ),
    ToolCallFormat(
        *(("<minimax:tool_call>",), '<invoke name="', '">\n', "</invoke>\n"),
        *("<minimax:tool_call>\n", "", "</minimax:tool_call>"),
        tags=('<parameter name="', '">', "</parameter>"),
    ),
    *(
        ToolCallFormat(
            *(
                (f"<{tag}>", "<function="),
                f"<{tag}>\n<function=",
                ">\n",
                f"</function>\n</{tag}>",
                "",
                "\n",
            ),
            others=("<function=NAME>",),
            tags=("<parameter=", ">\n", "\n</parameter>"),
        )
        for tag in ("tool_call", "seed:tool_call")
    ),
    ToolCallFormat(
        *(("<tool_call>", "<arg_key>"), "<tool_call>", "\n", "\n</tool_call>", "", "\n"),
        tags=("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
    ),
)
"""The syntaxes; of several that a template may be of, the first counts. Sources: the chat templates of gpt-oss, Mistral
7B v0.3 to Small 3.2, DeepSeek R1, V3 and V3.1, Granite 3, Qwen 2.5 and 3, Hermes 2 Pro, Llama 3.1 to 3.3, Command R7B
and A, Kimi K2, Gemma 4, MiniMax M2, Seed-OSS, Qwen3-Coder and 3.5, and GLM 4.5 to 4.7."""

_SPOKEN: Final = (
    f"<|channel|>final{_JSON}",
    f"<|channel|>commentary{_JSON}",
    "<|start|>assistant",
    "<|end|>",
    "<|call|>",
)
_PAIRS: Final = (
    ("<|channel>thought", "<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<think>", "</think>"),
)
REASONING_FORMATS: Final = (
    ReasoningFormat(
        "<|channel|>",
        (
            OpeningMarker("<|channel|>analysis<|message|>", "thought"),
            *(OpeningMarker(words, "text") for words in _SPOKEN),
        ),
        ("<|end|>", "<|start|>", "<|channel|>"),
        is_kept=True,
    ),
    *(ReasoningFormat(begin, (OpeningMarker(begin, "thought"),), (end,)) for begin, end in _PAIRS),
)
"""How gpt-oss, Gemma 4, Magistral, Command A, Seed-OSS, and Qwen 3, DeepSeek and most others think."""

_HEADS: Final = [head for row in TOOL_CALL_FORMATS for head in (*row.heads, *row.behind)]
_HEADS.extend(head for row in REASONING_FORMATS for head in row.heads)
_AROUND: Final = [text for row in TOOL_CALL_FORMATS for text in (row.mark, *(row.tags or ()))]
MARKERS: Final = frozenset(
    word.rstrip("~")
    for text in (*(head.text for head in _HEADS), *(end for _, end in _PAIRS), *_AROUND)
    for word in _words(text)
    if re.match(r"<.|\[/?[A-Z]", word)
)
"""The words of all these that may be single tokens of a model, which prints nothing for them unless it is told to."""


def tool_call_format_of(template: str) -> ToolCallFormat | None:
    """Return how the models of a template call tools; ``None`` where it does not tell."""
    return next(
        (row for row in TOOL_CALL_FORMATS if all(_holds(template, sign) for sign in row.signs)),
        None,
    )


def _holds(template: str, sign: str) -> bool:
    return sign[1:] not in template if sign.startswith("!") else sign in template


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """Return how the models of a template think; ``None`` where it does not tell."""
    return next((row for row in REASONING_FORMATS if row.sign in template), None)
