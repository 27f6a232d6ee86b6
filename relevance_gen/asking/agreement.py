"""Tests whether a sentence agrees with the text that supports it.

Two texts can share most words and contradict each other. A sentence agrees with a text if

* each number of the sentence occurs in the text; thousands separators are ignored, and the English
  words for 0 to 12 count as numbers;
* each capitalized content word of the sentence, except the sentence's first word, occurs in the
  text. A content word has at least three letters and is no English stop word. Words are compared by
  their first five letters, and case is ignored;
* the sentence does not end with repeated copies of one string (`asking.repetition.is_loop`), or the
  text also does;
* content words that occur in both are negated in both or in neither. A negation such as "not",
  "nicht" or "не" negates the next content word of its clause, or the previous one if none follows;
  in Chinese and Japanese, it negates the next character. A sentence with a negation does not agree
  with a text without any negation.

Antonyms and swapped words that are neither numbers nor capitalized are not detected. Source: the
rules were designed for this library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from attrs import define, field

from relevance_gen.asking.repetition import is_loop
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS

_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")
_THOUSANDS: Final = re.compile(r"[.,](?=\d{3}(?!\d))")
_LIST_MARKER: Final = re.compile(r"\A\s*\d{1,2}[.)]\s")
_WORD: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_CLAUSE_END: Final = re.compile(r"[.,;:!?()]")
_CJK_NEGATION: Final = re.compile("(?:没有?|沒有?|不|无|無|未)([\u3400-\u9fff])")
_PREFIX_CHARS: Final = 5
_MIN_CONTENT_CHARS: Final = 3
_NUMBER_WORDS: Final = {
    word: str(number)
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve".split()
    )
}
_NEGATIONS: Final = frozenset(
    "not no never without neither nor none cannot nobody nothing nowhere"
    " nicht kein keine keinen keiner keines keinem nie niemals ohne weder nichts"
    " ne pas jamais sans aucun aucune nunca jamás ningún ninguna não sem"
    " niet geen nooit zonder не нет ни никогда без".split()
)


@define
class Statement:
    """The parts of a text that another text must agree with.

    A prefix is a word in lower case, without the characters after the first five.

    Attributes:
        numbers: its numbers without thousands separators.
        names: prefixes of its capitalized content words, except the first word of the text.
        words: prefixes of its content words, and its CJK characters.
        negated: prefixes of the content words and the CJK characters that are negated.
        is_loop: whether it ends with copies of one string.
    """

    numbers: set[str] = field(factory=set)
    names: set[str] = field(factory=set)
    words: set[str] = field(factory=set)
    negated: set[str] = field(factory=set)
    is_loop: bool = False


def agrees(sentence: Statement, sources: Sequence[Statement]) -> bool:
    """Return whether a sentence agrees with its sources, by all rules of the module docstring.

    All sources together count as one text, so each source can contain a part of the sentence.

    >>> ants = read_statement("Ants count their 12 steps and do not see far.")
    >>> agrees(read_statement("Ants count twelve steps."), [ants])
    True
    >>> agrees(read_statement("Ants do not count steps."), [ants])
    False
    """
    supported = Statement()
    for source in sources:
        supported.numbers |= source.numbers
        supported.words |= source.words
        supported.negated |= source.negated
        supported.is_loop |= source.is_loop
    if sentence.is_loop and not supported.is_loop:
        return False
    if not sentence.numbers <= supported.numbers or not sentence.names <= supported.words:
        return False
    if sentence.negated and not supported.negated:
        return False
    return (
        sentence.negated & supported.words <= supported.negated
        and supported.negated & sentence.words <= sentence.negated
    )


def read_statement(text: str) -> Statement:
    """Return the parts of a text that decide whether another text agrees with it."""
    text = _LIST_MARKER.sub("", text)
    statement = Statement(is_loop=is_loop(text))
    statement.numbers = {_THOUSANDS.sub("", number) for number in _NUMBER.findall(text)}
    is_first = True
    for clause in _CLAUSE_END.split(text):
        words = _WORD.findall(clause)
        _add_clause(words, statement, is_first=is_first)
        is_first = is_first and not words
    statement.negated.update(_CJK_NEGATION.findall(text))
    statement.words.update(char for char in text if "\u3400" <= char <= "\u9fff")
    return statement


def _add_clause(
    words: Sequence[str],
    statement: Statement,
    *,
    is_first: bool,
) -> None:
    """Add the words of a clause to a statement.

    A negation without a following content word negates the previous one.

    Args:
        words: the words of the clause.
        statement: receives the words.
        is_first: whether the first of the words is the first word of the text.
    """
    last_content = ""
    is_negated = False
    for i, token in enumerate(words):
        word = token.casefold()
        if word in _NUMBER_WORDS:
            statement.numbers.add(_NUMBER_WORDS[word])
        if word in _NEGATIONS or word.endswith(("n't", "n’t")):
            is_negated = True
        elif word not in ENGLISH_STOP_WORDS and len(word) >= _MIN_CONTENT_CHARS:
            last_content = word[:_PREFIX_CHARS]
            statement.words.add(last_content)
            if is_negated:
                statement.negated.add(last_content)
            is_negated = False
            if token[0].isupper() and not (is_first and i == 0):
                statement.names.add(last_content)
    if is_negated and last_content:
        statement.negated.add(last_content)
