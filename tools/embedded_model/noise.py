"""Unnatural sentences: random words and names, numbers, quotations, code, tables.

The model must copy any text from its context. Prose alone would teach it to continue with likely
words.
"""

from __future__ import annotations

import random
import re
import string

_WORD = re.compile(r"[A-Za-z]{3,}")
_SMALL_WORDS = "the a of and to in is was for on that with as by from at are or an be it which were not".split()
_QUOTES = (
    ("“", "”"),
    ("‘", "’"),
    ('"', '"'),
    ("'", "'"),
    ("`", "`"),
    ("``", "``"),
    ("*", "*"),
    ("**", "**"),
)
_BRACKETS = (
    ("(", ")"),
    ("[", "]"),
    ("{", "}"),
    ("<", ">"),
    ("_", "_"),
    ("~~", "~~"),
    ("— ", " —"),
    ("– ", " –"),
)
_ENDS = (".", ".", ".", ".", ".", ".", "?", "!", "...", "…", ":", ";", ".”", '."', ".)")
_LATIN = "éèüöäßñçáíóúåøœæ" + "ÉÜÖÄÇ€£°×½²"


class Noise:
    """Draws disturbed and invented sentences, repeatably."""

    def __init__(self, words: list[str], seed: int) -> None:
        self._words = words
        self._random = random.Random(seed)
        self._kinds = (
            self._other_words,
            self._other_words,
            self.marked,
            self._random_words,
            self._technical,
        )

    def disturb(self, text: str) -> str:
        """Return the sentence with other words or with marks, or something that has nothing to do with it."""
        made = self._random.choice(self._kinds)(text)
        return self.marked(made) if self._random.random() < 0.2 else made

    def _word(self) -> str:
        draw = self._random.random()
        if draw < 0.6:
            return self._random.choice(self._words).lower()
        if draw < 0.8:
            return self._name()
        return self._number() if draw < 0.92 else self._gibberish()

    def _name(self) -> str:
        """Draw a name from the words of the list or from random syllables."""
        if self._random.random() < 0.5:
            return self._random.choice(self._words).capitalize()
        syllables = (
            self._random.choice("bcdfghjklmnprstvwz")
            + self._random.choice(("a", "e", "i", "o", "u", "ar", "en", "ov"))
            for _ in range(self._random.randint(1, 4))
        )
        return "".join(syllables).capitalize()

    def _number(self) -> str:
        n, kind = self._random.randrange(10 ** self._random.randint(1, 7)), self._random.random()
        if kind < 0.3:
            return str(self._random.randint(1100, 2050))
        if kind < 0.6:
            return f"{n:,}"
        return self._random.choice(
            ("{}", "{}%", "${}", "{}th", "{}.5", "{} km", "#{}", "{}°")
        ).format(n)

    def _gibberish(self) -> str:
        letters = (
            string.ascii_letters
            + string.digits
            + "_-./"
            + (_LATIN if self._random.random() < 0.5 else "")
        )
        return "".join(self._random.choices(letters, k=self._random.randint(2, 12)))

    def _other_words(self, text: str) -> str:
        """Replace random words by words with similar spelling."""
        share = self._random.uniform(0.1, 0.7)

        def other(match: re.Match[str]) -> str:
            if self._random.random() > share:
                return match.group()
            if match.group()[0].isupper():
                return self._name()
            return (
                self._word()
                if self._random.random() < 0.2
                else self._random.choice(self._words).lower()
            )

        return _WORD.sub(other, text)

    def marked(self, text: str) -> str:
        """Put quotation marks, backticks or brackets around one or two word sequences."""
        words = text.split(" ")
        for _ in range(self._random.randint(1, 2)):
            start = self._random.randrange(len(words))
            stop = min(len(words), start + self._random.randint(1, 4))
            opening, closing = self._random.choice(_QUOTES + _QUOTES + _BRACKETS)
            words[start] = opening + words[start]
            words[stop - 1] += closing
        return " ".join(words)

    def _random_words(self, _text: str) -> str:
        """Make a sentence of random words with small words and commas among them."""
        words = []
        for _ in range(self._random.randint(4, 18)):
            words.append(
                self._random.choice(_SMALL_WORDS) if self._random.random() < 0.35 else self._word()
            )
            if self._random.random() < 0.08:
                words[-1] += self._random.choice((",", ";", ":", " –", " -", " &", " /"))
        return (
            words[0][0].upper()
            + words[0][1:]
            + " "
            + " ".join(words[1:])
            + self._random.choice(_ENDS)
        )

    def _technical(self, _text: str) -> str:
        """Make a line of a table, of a list or of code."""
        words = [self._word() for _ in range(self._random.randint(2, 7))]
        forms = (
            "| " + " | ".join(words) + " |",
            "- " + " ".join(words),
            "* " + " ".join(words),
            f"{self._random.randint(1, 20)}. " + " ".join(words),
            "## " + " ".join(words),
            f"{words[0]}({', '.join(words[1:])}) -> {words[-1]}",
            f"{words[0]} = {{{', '.join(repr(word) for word in words[1:])}}}",
            f"{words[0]}: " + " ".join(words[1:]),
            f"--{words[0]}={words[1]} {' '.join(words[2:])}",
            f"<{words[0]}>{' '.join(words[1:])}</{words[0]}>",
            f"if {words[0]} != {words[1]}: return {words[-1]}[{len(words)}]",
        )
        return self._random.choice(forms)
