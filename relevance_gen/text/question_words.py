"""Words that only make a text a question, and say nothing about what it asks for.

`QUESTION_WORDS` are those of English among its function words, and `OTHER_QUESTION_WORDS` those of fifteen other languages. Their rule:
words that ask for a person, thing, kind, place, time, manner, reason or number, in the forms that begin questions. A
word that is also a name, or a frequent noun or verb in one of these languages, is left out (Turkish "kim", Vietnamese
"ai"), and so are Chinese and Thai, whose words are not told apart.

The frame of an English question is what stands with them: "how many", "which kind of", "what … happened". Measured in
docs/measurements.md; frames of other words (mention, main, examples of, how long) gave nothing, or did harm.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from relevance_gen.text.normalization import fold

QUESTION_WORDS: Final = frozenset(
    "did do does doing how what when where which who whom whose why".split()
)

OTHER_QUESTION_WORDS: Final = (
    # Latin
    "was welche welcher welches welchem welchen wer wem wessen wann wo wohin woher warum wieso weshalb wie viel viele",
    "quel quelle quels quelles qui quand où pourquoi comment combien",
    "qué cuál cuáles quién quiénes cuándo dónde cómo cuánto cuánta cuántos cuántas",
    "quale quali chi quando dove perché quanto quanta quanti quante",
    "qual quais quem quando onde quanto quanta quantos quantas",
    "wie wat waar wanneer welke welk waarom hoe hoeveel",
    "ce cui când unde cum câtă câți câte",
    "kto kiedy gdzie jaki jaka jakie który która które ile dlaczego",
    "vad vem vilken vilket vilka varför hur",
    "ne nedir nelerdir hangi hangisi kimdir kimin nerede nereye nereden nasıl nasıldır kaç kaçtır neden niçin",
    "gì nào đâu bao nhiêu tại sao khi thế",
    # Other scripts
    "τι ποιος ποια ποιο ποιοι ποιες ποιων ποιου ποιας ποιον πότε πού πως πόσο πόσα πόσοι πόσες πόσων γιατί",
    "что какой какая какое какие каким какую какого каких кто кого кому кем чей когда где куда откуда как сколько",
    "почему зачем чем чего",
    "ما ماذا من متى أين كيف كم لماذا أي أية هل",
    "क्या कौन कौनसा कौनसी कब कहाँ कहां कैसे कितने कितना कितनी क्यों किस किसने किसे किसका किसकी किसके किन",
)
"""German, French, Spanish, Italian, Portuguese, Dutch, Romanian, Polish, Swedish, Turkish, Vietnamese; Greek, Russian,
Arabic, Hindi."""

_FRAMES: Final = (
    ("how", "many much", None),
    (
        "what which any",
        "kind kinds type types sort sorts form forms variety varieties category categories",
        "of",
    ),
)
_BESIDE: Final = {
    word: (before.split(), behind) for before, frame, behind in _FRAMES for word in frame.split()
}
"""For each word of a frame the words that may stand before it, and the one behind it; None is any, or none."""
_HAPPENING: Final = frozenset("happen happens happened done".split())
_ASKS_WHAT_HAPPENS: Final = frozenset("what how why".split())
_REACH: Final = 8
"""So many words before such a word stands the one that asks."""


@functools.cache
def other_question_words(*, latin: bool) -> frozenset[str]:
    """Return the words of `OTHER_QUESTION_WORDS` as terms are spelled; those in Latin letters only if `latin`."""
    words = fold([" ".join(OTHER_QUESTION_WORDS)])[0][:-1].decode().split()
    return frozenset(word for word in words if latin or not "a" <= word[0] <= "z")


def question_frame(words: Sequence[str]) -> set[int]:
    """Return the places of the words that are the frame of an English question.

    >>> framed("how many kinds of whales are there".split()), framed("what has happened to many whales".split())
    ({1}, {2})
    """
    found = set()
    for place, word in enumerate(words):
        if word in _BESIDE:
            before, behind = _BESIDE[word]
            if words[max(0, place - 1)] in before and behind in (
                None,
                *words[place + 1 : place + 2],
            ):
                found.add(place)
        elif word in _HAPPENING and not _ASKS_WHAT_HAPPENS.isdisjoint(
            words[max(0, place - _REACH) : place]
        ):
            found.add(place)
    return found
