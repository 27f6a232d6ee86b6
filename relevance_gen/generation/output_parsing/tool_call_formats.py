"""Tables of the formats in which model families write tool calls and reasoning.

The chat template selects the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from attrs import astuple, frozen

from relevance_gen.generation.output_parsing.opening_markers import OpeningMarker, split_words


@frozen
class ArgumentTags:
    """The tags around each argument of a call, for model families that do not write a JSON object.

    A line break at the start or the end of a tag belongs neither to the name nor to the value.

    Attributes:
        before_name: the tag before the name of an argument.
        before_value: the tag between the name and the value.
        after_value: the tag after the value.
    """

    before_name: str
    before_value: str
    after_value: str


@frozen(kw_only=True)
class ToolCallFormat:
    """The text that a model family writes around the names and arguments of its tool calls.

    When output is parsed, white space may separate the words of these texts.

    Attributes:
        template_markers: a chat template that contains all of these belongs to the family.
        excluded_markers: a chat template that contains any of these does not.
        before_calls, between_calls, after_calls: the texts around and between all calls of a turn.
        before_name, before_arguments, after_arguments: the texts around the name and the arguments
            of one call; by default a JSON object with ``name`` and ``arguments``.
        alternative_openings: further texts of opening markers that the parser accepts and the
            renderer does not write.
        argument_tags: the tags around each argument, for families that do not write JSON. JSON is
            accepted, too.
        string_delimiter: the text around string values in arguments with unquoted names.
    """

    template_markers: tuple[str, ...]
    excluded_markers: tuple[str, ...] = ()
    before_calls: str = ""
    between_calls: str = ""
    after_calls: str = ""
    before_name: str = '{"name": "'
    before_arguments: str = '", "arguments": '
    after_arguments: str = "}"
    alternative_openings: tuple[str, ...] = ()
    argument_tags: ArgumentTags | None = None
    string_delimiter: str = ""

    def matches_template(self, template: str) -> bool:
        """Return whether a chat template belongs to the model family that uses this format."""
        has_all = all(marker in template for marker in self.template_markers)
        return has_all and not any(marker in template for marker in self.excluded_markers)

    @property
    def first_openings(self) -> tuple[OpeningMarker, ...]:
        """The opening markers of the first call of a turn."""
        first = f"{self.before_calls}{self.before_name}NAME{self.before_arguments}"
        return tuple(self._opening(text) for text in (first, *self.alternative_openings))

    @property
    def next_openings(self) -> tuple[OpeningMarker, ...]:
        """The markers after a call: another call's opening, or the words that close this call."""
        another = f"{self.before_name}NAME{self.before_arguments}"
        openings = [
            self._opening(self.between_calls + text)
            for text in (another, *self.alternative_openings)
        ]
        closings = [OpeningMarker(word, "text") for word in self._closing_words]
        return (*openings, *closings)

    @property
    def _closing_words(self) -> tuple[str, ...]:
        """The words after the arguments of a call.

        The brace of a JSON object around the call is excluded.
        """
        after = self.after_arguments
        if self.before_name.endswith('"'):
            after = after.removeprefix("}")
        return split_words(after + self.after_calls)

    def _opening(self, text: str) -> OpeningMarker:
        """Return an opening marker with the words in `text`.

        The marker matches only if the beginning of the arguments follows it: a brace, or, for
        arguments with tags, the tag before a name or the first closing word of the call.
        """
        lookahead = ["{"]
        if self.argument_tags is not None:
            lookahead += [self.argument_tags.before_name, self._closing_words[0]]
        return OpeningMarker(text, lookahead=tuple(lookahead))

    def render_call(self, name: str, arguments: str) -> str:
        """Return one call as the model writes it; `arguments` is the text of its arguments."""
        return f"{self.before_name}{name}{self.before_arguments}{arguments}{self.after_arguments}"

    def render_turn(self, calls: Iterable[str]) -> str:
        """Return all calls of a turn, each rendered by `render_call`, as the model writes them."""
        return f"{self.before_calls}{self.between_calls.join(calls)}{self.after_calls}"


@frozen(kw_only=True)
class ReasoningFormat:
    """The text that a model family writes around its reasoning.

    Attributes:
        template_marker: a chat template that contains this text belongs to the family.
        openings: the markers before reasoning, and before the answer if the family marks it.
        ends: the texts that end reasoning.
        ends_are_openings: whether the end of reasoning starts the next opening marker. Openings are
            then accepted anywhere; otherwise reasoning is accepted only at the start of a turn.
    """

    template_marker: str
    openings: tuple[OpeningMarker, ...]
    ends: tuple[str, ...]
    ends_are_openings: bool = False


# ── Tool calls ────────────────────────────────────────────────────────────────────────────────────

HERMES: Final = ToolCallFormat(
    template_markers=("<tool_call>",),
    excluded_markers=("<function=", "<arg_key>"),
    between_calls="\n",
    before_name='<tool_call>\n{"name": "',
    after_arguments="}\n</tool_call>",
)
"""The format of Qwen 2.5 and 3 and Hermes 2 Pro, which is also used for unknown model families."""

TOOL_CALL_FORMATS: Final = (
    # gpt-oss
    ToolCallFormat(
        template_markers=("<|channel|>", "functions."),
        before_name="<|channel|>commentary to=functions.",
        before_arguments=" <|constrain|>json<|message|>",
        after_arguments="",
        alternative_openings=(
            "<|channel|>commentary to=functions.NAME<|constrain|>~json~<|message|>",
            "<|start|>~assistant~to=functions.NAME"
            "<|channel|>commentary<|constrain|>~json~<|message|>",
            "<|channel|>analysis to=functions.NAME<|constrain|>~json~<|message|>",
            "<|start|>~assistant~to=functions.NAME"
            "<|channel|>analysis<|constrain|>~json~<|message|>",
        ),
    ),
    # Mistral Small 3.2
    ToolCallFormat(
        template_markers=("[TOOL_CALLS]", "[ARGS]"),
        before_name="[TOOL_CALLS]",
        before_arguments="[ARGS]",
        after_arguments="",
        alternative_openings=("[TOOL_CALLS]NAME[CALL_ID]ANY[ARGS]~",),
    ),
    # Mistral 7B v0.3 and later
    ToolCallFormat(
        template_markers=("[TOOL_CALLS]",),
        before_calls="[TOOL_CALLS] [",
        between_calls=", ",
        after_calls="]",
        alternative_openings=("[TOOL_CALLS]NAME[ARGS]~",),
    ),
    # DeepSeek R1 and V3
    ToolCallFormat(
        template_markers=("<｜tool▁calls▁begin｜>", "```json"),
        before_calls="<｜tool▁calls▁begin｜>",
        between_calls="\n",
        after_calls="<｜tool▁calls▁end｜>",
        before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        before_arguments="\n```json\n",
        after_arguments="\n```<｜tool▁call▁end｜>",
    ),
    # DeepSeek V3.1
    ToolCallFormat(
        template_markers=("<｜tool▁calls▁begin｜>",),
        before_calls="<｜tool▁calls▁begin｜>",
        after_calls="<｜tool▁calls▁end｜>",
        before_name="<｜tool▁call▁begin｜>",
        before_arguments="<｜tool▁sep｜>",
        after_arguments="<｜tool▁call▁end｜>",
    ),
    # Granite 3
    ToolCallFormat(
        template_markers=("<|tool_call|>",),
        before_calls="<|tool_call|>[",
        between_calls=", ",
        after_calls="]",
        alternative_openings=('<tool_call>[{"name": "NAME", "arguments": ',),
    ),
    HERMES,
    # Llama 3.1 to 3.3
    ToolCallFormat(
        template_markers=('"parameters"', "<|start_header_id|>"),
        between_calls="; ",
        before_arguments='", "parameters": ',
        alternative_openings=('<|python_tag|>{"name": "NAME", "arguments": ',),
    ),
    # Command R7B and A
    ToolCallFormat(
        template_markers=("<|START_ACTION|>",),
        before_calls="<|START_ACTION|>[\n    ",
        between_calls=",\n    ",
        after_calls="\n]<|END_ACTION|>",
        before_name='{"tool_call_id": "0", "tool_name": "',
        before_arguments='", "parameters": ',
        alternative_openings=(
            '<|START_ACTION|>[{"tool_call_id":"ANY","tool_name":"NAME","parameters":',
            '<|START_ACTION|>[{"tool_name":"NAME","parameters":',
            '{"tool_call_id":"ANY","tool_name":"NAME","parameters":',
            '{"tool_name":"NAME","parameters":',
        ),
    ),
    # Kimi K2
    ToolCallFormat(
        template_markers=("tool_declare",),
        before_calls="<|tool_calls_section_begin|>",
        after_calls="<|tool_calls_section_end|>",
        before_name="<|tool_call_begin|>functions.",
        before_arguments=":0<|tool_call_argument_begin|>",
        after_arguments="<|tool_call_end|>",
        alternative_openings=(
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.~NAME:ANY<|tool_call_argument_begin|>",
            "<|tool_call_begin|>functions.~NAME:ANY<|tool_call_argument_begin|>",
        ),
    ),
    # Gemma 4
    ToolCallFormat(
        template_markers=("<|tool_call>", "call:"),
        before_name="<|tool_call>call:",
        before_arguments="",
        after_arguments="<tool_call|>",
        string_delimiter='<|"|>',
    ),
    # MiniMax M2
    ToolCallFormat(
        template_markers=("<minimax:tool_call>",),
        before_calls="<minimax:tool_call>\n",
        after_calls="</minimax:tool_call>",
        before_name='<invoke name="',
        before_arguments='">\n',
        after_arguments="</invoke>\n",
        argument_tags=ArgumentTags('<parameter name="', '">', "</parameter>"),
    ),
    # Qwen3-Coder and Qwen 3.5
    ToolCallFormat(
        template_markers=("<tool_call>", "<function="),
        between_calls="\n",
        before_name="<tool_call>\n<function=",
        before_arguments=">\n",
        after_arguments="</function>\n</tool_call>",
        alternative_openings=("<function=NAME>",),
        argument_tags=ArgumentTags("<parameter=", ">\n", "\n</parameter>"),
    ),
    # Seed-OSS
    ToolCallFormat(
        template_markers=("<seed:tool_call>", "<function="),
        between_calls="\n",
        before_name="<seed:tool_call>\n<function=",
        before_arguments=">\n",
        after_arguments="</function>\n</seed:tool_call>",
        alternative_openings=("<function=NAME>",),
        argument_tags=ArgumentTags("<parameter=", ">\n", "\n</parameter>"),
    ),
    # GLM 4.5 to 4.7
    ToolCallFormat(
        template_markers=("<tool_call>", "<arg_key>"),
        between_calls="\n",
        before_name="<tool_call>",
        before_arguments="\n",
        after_arguments="\n</tool_call>",
        argument_tags=ArgumentTags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
    ),
)
"""The tool-call formats of model families; the first format that matches a template is used.

Source: the chat templates of these models.
"""

# ── Reasoning ─────────────────────────────────────────────────────────────────────────────────────

_REASONING_TAGS: Final = {
    "<|channel>thought": "<channel|>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<seed:think>": "</seed:think>",
    "<think>": "</think>",
}
REASONING_FORMATS: Final = (
    # gpt-oss
    ReasoningFormat(
        template_marker="<|channel|>",
        openings=(
            OpeningMarker("<|channel|>analysis<|message|>", "reasoning"),
            OpeningMarker("<|channel|>final<|constrain|>~json~<|message|>", "text"),
            OpeningMarker("<|channel|>commentary<|constrain|>~json~<|message|>", "text"),
            OpeningMarker("<|start|>assistant", "text"),
            OpeningMarker("<|end|>", "text"),
            OpeningMarker("<|call|>", "text"),
        ),
        ends=("<|end|>", "<|start|>", "<|channel|>"),
        ends_are_openings=True,
    ),
    *[
        ReasoningFormat(
            template_marker=start,
            openings=(OpeningMarker(start, "reasoning"),),
            ends=(end,),
        )
        for start, end in _REASONING_TAGS.items()
    ],
)
"""The reasoning formats of gpt-oss, Gemma 4, Magistral, Command A, Seed-OSS, and Qwen 3, DeepSeek
and most other models."""


def _marker_texts() -> Iterable[str]:
    """Yield the marker texts of all formats of tool calls and reasoning.

    These texts may contain special tokens.
    """
    openings = []
    for tool_calls in TOOL_CALL_FORMATS:
        openings += [*tool_calls.first_openings, *tool_calls.next_openings]
        yield tool_calls.string_delimiter
        if tags := tool_calls.argument_tags:
            yield from astuple(tags)
    for reasoning in REASONING_FORMATS:
        openings += reasoning.openings
    yield from (opening.text for opening in openings)
    yield from _REASONING_TAGS.values()


_MARKER_WORDS = [word for text in _marker_texts() for word in split_words(text)]
MARKERS: Final = frozenset(
    word.rstrip("~") for word in _MARKER_WORDS if re.match(r"<.|\[/?[A-Z]", word)
)
"""Words of these formats that may be single control tokens of a model, which llama.cpp prints as an
empty text unless `Tokenizer.make_visible` is called with them."""


def tool_call_format_of(template: str) -> ToolCallFormat | None:
    """Return the tool-call format of a chat template's model family; None if no format matches."""
    return next((item for item in TOOL_CALL_FORMATS if item.matches_template(template)), None)


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """Return the reasoning format of a chat template's model family; None if no format matches."""
    return next((item for item in REASONING_FORMATS if item.template_marker in template), None)
