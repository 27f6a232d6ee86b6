"""Words that mark a text as a question and are not about its subject.

`QUESTION_WORDS` are the interrogatives among the English stop words, and `OTHER_QUESTION_WORDS` the
interrogatives of fifteen other languages: words that ask for a person, thing, kind, place, time,
manner, reason or number, in the forms that begin questions. Omitted are words that are also names,
or frequent nouns or verbs in any of these languages (Turkish "kim", Vietnamese "ai"), and Chinese
and Thai, whose words are not separated.

The frame of an English question consists of the words next to interrogatives: "how many", "which
kind of", "what … happened"; and of instructions how to answer: "answer in USD millions", "if it is
not useful, state that and explain why". Frames of other words (mention, main, examples of, how
long) did not improve results or made them worse.
"""

from __future__ import annotations

import functools
import re
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
"""German, French, Spanish, Italian, Portuguese, Dutch, Romanian, Polish, Swedish, Turkish,
Vietnamese; Greek, Russian, Arabic, Hindi."""

_QUANTITIES: Final = frozenset({"many", "much"})
"""Words that belong to the frame after "how"."""
_KINDS: Final = frozenset(
    "kind kinds type types sort sorts form forms variety varieties category categories".split()
)
"""Words that belong to the frame between a word of `_ASKS_FOR_KIND` and "of"."""
_ASKS_FOR_KIND: Final = frozenset({"what", "which", "any"})
_HAPPENING: Final = frozenset("happen happens happened done".split())
_ASKS_WHAT_HAPPENS: Final = frozenset("what how why".split())
_MAX_DISTANCE: Final = 8
"""Maximum number of words from the interrogative to a word of `_HAPPENING`."""


_UNITS: Final = (
    "( (a|an|one|two|three|short|full|few|us))*"
    "( (usd|eur|gbp|dollars|euros|thousands?|millions?|billions?|percent|words?|sentences?))+"
)
_EVIDENCE: Final = (
    "(information|context|details|data|text|documents?|passages?|sources?)"
    " (provided|given|stated|shown|above|below)( only| solely)?"
)
_INSTRUCTIONS: Final = (
    "please",
    f"(answer|respond|reply|express (it|them)|give (the|your) answer) in{_UNITS}",
    r"round(ed)?( (the|your) (answer|result))? to( \w+){1,2} (decimal places?|decimals?|digits?)",
    r"if( \w+){0,8} (not|don t|doesn t|isn t|cannot)( \w+){0,10} (state|say|mention) (so|that|this)"
    "( and explain why)?",
    f"(by )?drawing conclusions from the {_EVIDENCE}",
    f"(using|according to|(based|relying)( only| solely)? on) the {_EVIDENCE}",
    "(according to|based on) the (context|passages?)",
    "explain your (answer|reasoning)",
    "think step by step",
)
"""Regular expressions of instructions how to answer, over words separated by spaces."""
_INSTRUCTION: Final = rf"\b({'|'.join(_INSTRUCTIONS)})\b"
_INSTRUCTION_WORDS: Final = frozenset(
    "please answer respond reply express round rounded state say mention drawing based relying"
    " using according reasoning step".split()
)
"""Every instruction has at least one of these words."""
FRAME_WORDS: Final = _QUANTITIES | _KINDS | _HAPPENING | _INSTRUCTION_WORDS
"""Every frame has at least one of these words."""


@functools.cache
def other_question_words(*, latin: bool) -> frozenset[str]:
    """Return the words of `OTHER_QUESTION_WORDS` in the folded spelling of terms.

    Args:
        latin: whether to include the words in Latin letters.
    """
    folded = fold([" ".join(OTHER_QUESTION_WORDS)]).content
    words = folded[:-1].decode().split()
    return frozenset(word for word in words if latin or not "a" <= word[0] <= "z")


def question_frame(words: Sequence[str]) -> set[int]:
    """Return the indices of the words that belong to the frame of an English question.

    Interrogatives are not part of the frame; instructions how to answer are. The words must be
    folded and in lower case.

    >>> question_frame("how many kinds of whales are there".split())
    {1}
    >>> question_frame("what has happened to many whales".split())
    {2}
    >>> question_frame("price of a whale answer in usd millions".split())
    {4, 5, 6, 7}
    """
    frame = set() if _INSTRUCTION_WORDS.isdisjoint(words) else _instruction(words)
    before_words = ["", *words]
    after_words = [*words[1:], ""]
    for index, word in enumerate(words):
        is_in_frame = False
        if word in _QUANTITIES:
            is_in_frame = before_words[index] == "how"
        elif word in _KINDS:
            has_before = before_words[index] in _ASKS_FOR_KIND
            is_in_frame = has_before and after_words[index] == "of"
        elif word in _HAPPENING:
            words_before = words[max(0, index - _MAX_DISTANCE) : index]
            is_in_frame = not _ASKS_WHAT_HAPPENS.isdisjoint(words_before)
        if is_in_frame:
            frame.add(index)
    return frame


def _instruction(words: Sequence[str]) -> set[int]:
    """Return the indices of the words that belong to instructions how to answer.

    The instructions are the matches of `_INSTRUCTIONS`.
    """
    text = " ".join(words)
    indices: set[int] = set()
    first = start = 0
    # The pattern is compiled on first use, and cached by `re`.
    for match in re.finditer(_INSTRUCTION, text):
        first += text.count(" ", start, match.start())
        start = match.start()
        indices.update(range(first, first + match[0].count(" ") + 1))
    return indices
