"""Stop words, and marker words that indicate the language of a text."""

from __future__ import annotations

from typing import Final

ENGLISH_STOP_WORDS: Final = frozenset(
    """
    a about above after again against all also am an and any are as at be because been before being below between both
    but by can cannot could did do does doing down during each few for from further had has have having he her here hers
    herself him himself his how i if in into is it its itself just let may me might more most must my myself no nor not
    now of off on once only or other ought our ours ourselves out over own per same shall she should so some such than
    that the their theirs them themselves then there these they this those through to too under until up upon us very
    via was we were what when where which while who whom whose why will with within without would you your yours
    yourself yourselves
    d ll m re s t ve don doesn didn isn aren wasn weren
    """.split()
)
"""English function and question words, and their parts before and after apostrophes."""

ENGLISH_MARKERS: Final = tuple("the and that with this are from which you have".split())
"""Frequent English words that are rare in other languages."""

OTHER_MARKERS: Final = tuple(
    """
    der das und ist nicht ein eine den von mit auf für sich dem le les des est une que dans pour qui el los las una por
    con del como il di che non della sono een het van niet och att som det ikke ja ei että oli się jest że nie je ve bir
    bu için ile și este care pentru hogy egy nem és và của là các có dan yang di untuk
    """.split()
)
"""Frequent words of German, French, Spanish, Italian, Dutch, Swedish, Danish, Finnish, Polish,
Czech, Turkish, Romanian, Hungarian, Vietnamese and Indonesian that are rare in English."""
