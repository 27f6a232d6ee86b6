"""Words that say little about what a text is about, and words that tell its language."""

from __future__ import annotations

from typing import Final

ENGLISH: Final = frozenset(
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
"""English function and question words, and what apostrophes leave of them."""

ENGLISH_MARKERS: Final = tuple("the and that with this are from which you have".split())
"""Frequent English words that are rare in other languages."""

OTHER_MARKERS: Final = tuple(
    """
    der das und ist nicht ein eine den von mit auf für sich dem le les des est une que dans pour qui el los las una por
    con del como il di che non della sono een het van niet och att som det ikke ja ei että oli się jest że nie je ve bir
    bu için ile și este care pentru hogy egy nem és và của là các có dan yang di untuk
    """.split()
)
"""Frequent words of German, French, Spanish, Italian, Dutch, Swedish, Danish, Finnish, Polish, Czech, Turkish,
Romanian, Hungarian, Vietnamese and Indonesian that are rare in English."""

# fmt: off
MARKER_IDS: Final = (
    0xd428bd70352d1f3e, 0xe3c6cffcb4705b9e, 0xd401eada8364756a, 0x21c5e4b274097a93, 0xd453c8adf6b30e5b,
    0x3136d47a534bb2d6, 0x5b215b7881d9efaa, 0x1d54e0df75faa6e1, 0x85ab1ee74057a84f, 0x80e4b32e7852b225,
    0x3fb79545b51fcef2, 0x2372f9d25b1e511f, 0x1964e0dbc5955e48, 0x4b7843d900a5f874, 0x53d600dc077493b9,
    0xcd9ffd1bd73e1161, 0xcd966d03c52cf744, 0x3f23981a49be774c, 0xeb8d92f29c10e30e, 0x866b70f62f021ba2,
    0xf7fd50f76d0b2e1e, 0xc55daf41c13c6c21, 0x21b8b92a13c64556, 0x91e5f6553659303a, 0xa24763f77baa7065,
    0x031edf0e7336c226, 0xee17025fe1100779, 0x40eb9afe3ceb64a5, 0xc7996a6d8f4bc9c7, 0x74db85dd95e8f46d,
    0x75a53b454057bcd3, 0xac1286f4ffd65d6f, 0x743152b00f3cd4b0, 0x32edc6f24b82a016, 0xfe765958ba6a22e0,
    0x39f083d725ef9024, 0xc76aa87674302ab5, 0x5b330df51be0a799, 0x788e49a0a76be0f6, 0xe37571aeeda7067a,
    0xc94aad63640c692d, 0x3cee4264445479db, 0x5715976e44742eda, 0xe71501875a94fa9b, 0xd5fc8c5bfb650771,
    0xe381a7c84743a35a, 0xa3df28885c8243d4, 0x02b38ba81451c8dd, 0xee2a51c25767991d, 0x256e169752aff461,
    0xf7282cb37399d1b8, 0xdb721726dd9a7c06, 0xe8151d2e6be375c6, 0xf43de5a70727e5eb, 0xe3e5a62b588f089d,
    0xeb7eef620a98b30e, 0x527b140f2d53b4b9, 0x19388602e1dd37d0, 0xf30fd13297c25b73, 0xd2b6bbc4bae4a5fd,
    0xc4a9eee7c999b235, 0x7e5018e49a7f48cd, 0x47fbd0ed79fb3531, 0xf7520eda116a9579, 0x1c4110ce22787675,
    0x3d8e02265823a458, 0x85cfa15c0b75bfc1, 0x078af12dc88d8121, 0xf91626076a4405ab, 0x413ed5ffda11d12b,
    0xbf082144393a0cad, 0x40988f1902d4f2bb, 0xb26980bacbc1df37, 0x60b3a7b82e47b08e, 0xf3746c35c20d4bc1,
    0xb9f9e56f0af563ef, 0x2ceaaee00063a2de, 0xe98b110d7556208a, 0x724e83ed3a9af9b3, 0x47cde96e61dd2cf2,
    0xd7aa9c78b4453f25, 0x60c31568e20b5c5b, 0xc48b4a7646f98369, 0x751a93b30acc4a18, 0x6d4db77cd1ed62a3,
    0x5715976e44742eda, 0x19025bd3a3c1847d,
)
# fmt: on
"""The ids of the words of both, in their order: cutting them into terms anew would take a third of a first search."""
