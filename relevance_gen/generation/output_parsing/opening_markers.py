"""Opening markers of tool calls, reasoning and answers.

A model writes the marker before the part that it opens.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from attrs import frozen

from relevance_gen.types import PartKind

_WORD: Final = re.compile(
    r'(?:<(?:(?!NAME)[^<>\s])+>|\[/?[A-Z_]+\]|"(?!NAME|ANY)\w+"|NAME|ANY|```|(?:(?!NAME|ANY)[\w.=])+|[^\s\w])~?'
)
_IDENTIFIER: Final = re.compile(r"[\w.-]{1,128}", re.ASCII)
_SPACE: Final = re.compile(r"\s{0,200}")
_ARGUMENTS: Final = ('"arguments"', '"parameters"')
"""Synonyms: each of these words matches the others, too."""
_TYPED_NAME: Final = '{"type"~:~"function"~,~"name'
"""An object that starts with the name of a tool may have its type before the name."""


@functools.cache
def split_words(text: str) -> tuple[str, ...]:
    """Return the words of a marker's text, in order.

    A word is a tag such as ``<tool_call>`` or ``[ARGS]``, a quoted name, a placeholder (NAME or
    ANY), an unquoted name, or a punctuation mark, each with the tilde that follows it, if any.
    Before ``"name`` at the start of an object, optional words for ``"type": "function",`` are
    inserted, because models may write the type before the name.
    """
    return tuple(_WORD.findall(text.replace('{"name', _TYPED_NAME)))


@frozen
class OpeningMarker:
    """The text before a tool call, before reasoning or before an answer.

    Attributes:
        text: the words of the marker; in the output, white space may separate them. The word NAME
            matches the name of a tool, ANY matches any other name, and a word that a tilde follows
            is optional.
        opens: the kind of part that follows the marker.
        lookahead: the marker matches only if one of these texts follows it, with white space
            between them allowed; empty for no condition. For a tool call, these are the texts with
            which arguments can begin.
    """

    text: str
    opens: PartKind = "tool_call"
    lookahead: tuple[str, ...] = ()

    def match(self, text: str) -> MarkerMatch | None:
        """Match the marker and its lookahead at the start of `text`.

        Return a partial match if `text` ends inside the marker or the lookahead, and None if `text`
        cannot begin with the marker.
        """
        words = self._match_words(text)
        if words is None or words.is_partial:
            return words
        next_text = _skip_space(text, words.end)
        if not self.lookahead or text.startswith(self.lookahead, next_text):
            is_call = self.opens == "tool_call"
            return MarkerMatch(self, next_text if is_call else words.end, words.tool_name)
        if any(may_become(beginning, text, next_text) for beginning in self.lookahead):
            return MarkerMatch(self, is_partial=True)
        return None

    def _match_words(self, text: str) -> MarkerMatch | None:
        end = 0
        tool_name = ""
        for word in split_words(self.text):
            end = _skip_space(text, end)
            if word in ("NAME", "ANY"):
                identifier = _IDENTIFIER.match(text, end)
                identifier_end = identifier.end() if identifier else end
                if identifier_end == len(text):
                    return MarkerMatch(self, is_partial=True)
                if identifier is None:
                    return None
                if word == "NAME":
                    tool_name = identifier[0]
                end = identifier_end
                continue
            spellings = _ARGUMENTS if word in _ARGUMENTS else (word.rstrip("~"),)
            spelling = next((item for item in spellings if text.startswith(item, end)), "")
            if spelling:
                end += len(spelling)
            elif any(may_become(item, text, end) for item in spellings):
                return MarkerMatch(self, is_partial=True)
            elif not word.endswith("~"):
                return None
        return MarkerMatch(self, end, tool_name)


@frozen
class MarkerMatch:
    """A match of an opening marker at the start of a text.

    Attributes:
        marker: the marker.
        end: index in the text at which the marker ends; for a tool call, at which the white space
            after the marker ends. 0 for a partial match.
        tool_name: the name of the tool in the marker; "" if the marker has none.
        is_partial: whether the text ends inside the marker or its lookahead, so that further text
            decides whether the marker matches.
    """

    marker: OpeningMarker
    end: int = 0
    tool_name: str = ""
    is_partial: bool = False


def may_become(word: str, text: str, start: int) -> bool:
    """Return whether `text` from `start` is a beginning of `word` that more text may complete."""
    return len(text) - start < len(word) and word.startswith(text[start:])


def _skip_space(text: str, start: int) -> int:
    """Return the index after the white space at `start`, at most 200 characters later."""
    space = _SPACE.match(text, start)
    return space.end() if space else start
