"""The whole of search, slow and obvious: dicts and loops, written from the documented formulas."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

import Stemmer

from relevance_gen.retrieval.folding import fold_character
from relevance_gen.retrieval.stopwords import ENGLISH, ENGLISH_MARKERS, OTHER_MARKERS

KNEE = 1 - 5e-7
PAIRS, TRIPLES, WORD = "pairs", "triples", "word"
_stem = Stemmer.Stemmer("english").stemWord


# ── Terms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def kind(character: str) -> str:
    """Tell how a folded character is cut; white space and punctuation are no kind."""
    code = ord(character)
    emoji = unicodedata.category(character) == "So" and (0x2600 <= code < 0x27C0 or code >= 0x1F000)
    if not (unicodedata.category(character)[0] in "LMN" or emoji):
        return ""
    if (emoji and code >= 0x10000) or 0x20000 <= code < 0x40000:
        return character  # of no kind but its own: it stands alone
    if 0x3000 <= code < 0xA490 or 0xAC00 <= code < 0xE000 or emoji:
        return PAIRS
    if 0x0E00 <= code < 0x0F00 or 0x1000 <= code < 0x10A0 or 0x1780 <= code < 0x1800:
        return TRIPLES
    return WORD


def terms(text: str) -> list[str]:
    """Cut a text into terms, in reading order: identifiers before their parts."""
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\ufffd", " ")
    folded = "".join(
        c if c.isascii() or _is_emoji(c) else fold_character(c) for c in unicodedata.normalize("NFC", text)
    )
    folded = unicodedata.normalize("NFC", folded)
    found: list[str] = []
    runs = [[cut, "".join(run)] for cut, run in itertools.groupby(folded, kind)]
    for at in range(len(runs) - 2, 0, -1):  # a single underscore joins words
        if runs[at][1] == "_" and runs[at - 1][0] == runs[at + 1][0] == WORD:
            runs[at - 1 : at + 2] = [[WORD, runs[at - 1][1] + "_" + runs[at + 1][1]]]
    for cut, characters in runs:
        if cut in (PAIRS, TRIPLES):
            size = min(len(characters), 2 if cut == PAIRS else 3)
            found += [characters[at : at + size] for at in range(len(characters) - size + 1)]
        elif cut == WORD:
            found += identifier(characters)
        elif cut:
            found += list(characters)
    return found


def _is_emoji(character: str) -> bool:
    return kind(character) in (PAIRS, character) and unicodedata.category(character) == "So"


def identifier(word: str) -> list[str]:
    """Return a word, lower-cased, and its parts: ``HTTPServer_v2`` → httpserver_v2, http, server, v2."""
    cut = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<!^)(?=[A-Z][a-z])", "_", word)
    parts = [part for part in cut.split("_") if part]
    return [part.lower() for part in [word, *(part for part in parts if part != word)]] if parts else []


# ── Matching ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def stem(word: str) -> str:
    return _stem(word) if word.isascii() and len(word) < 64 else word


def is_inflected(word: str) -> bool:
    return (
        len(word) >= 3
        and len(word.encode()) < 64
        and all(kind(character) == WORD and character != "_" and not character.isdigit() for character in word)
    )


def is_english(chunks: Sequence[Sequence[str]]) -> bool:
    words = Counter(itertools.chain(*chunks))
    other = [marker for text in OTHER_MARKERS for marker in terms(text)]
    return sum(words[marker] for marker in ENGLISH_MARKERS) >= sum(words[marker] for marker in other)


def similarity(word: str, other: str) -> float:
    shared = 0
    while shared < min(len(word), len(other)) and word[shared] == other[shared]:
        shared += 1
    share = shared / max(len(word), len(other))
    return share if shared >= 3 and share >= 0.5 else 0.0


def forms(word: str, vocabulary: set[str], stop: bool, english: bool) -> dict[str, float]:
    """Return the chunks' words that a word of the query stands for, and the weight of each."""
    own = {word: 1.0} if word in vocabulary else {}
    if stop:
        return own
    size = {PAIRS: 2, TRIPLES: 3}.get(kind(word[0]), 0)
    if len(word) < size:
        return {term: 1 / (size - len(word) + 1) if len(term) == size else 1.0 for term in vocabulary if word in term}
    if not is_inflected(word):
        return own
    found = {}
    for other in filter(is_inflected, vocabulary - ENGLISH):
        if other[:2] == word[:2]:  # "dying" and "die" are told apart
            by_prefix = similarity(word, other) if not english or not word.isascii() else 0.0
            found[other] = 1.0 if stem(other) == stem(word) else by_prefix
    return {other: weight for other, weight in found.items() if weight} | own


# ── Scores ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def scores(query: str, texts: Sequence[str], weighting: str = "pivoted") -> list[float]:
    """Score every chunk against the query."""
    return {"pivoted": pivoted, "cosine": cosine}[weighting](terms(query), [terms(text) for text in texts])


def cosine(query: list[str], chunks: list[list[str]]) -> list[float]:
    df = Counter(term for chunk in chunks for term in set(chunk))

    def vector(words: list[str]) -> dict[str, float]:
        weights = {
            term: (1 + math.log(tf)) * (1 + math.log((1 + len(chunks)) / (1 + df[term])))
            for term, tf in Counter(words).items()
            if df[term]
        }
        norm = math.hypot(*weights.values())
        return {term: weight / norm for term, weight in weights.items()}

    asked = vector(query)
    return [math.fsum(asked.get(term, 0.0) * weight for term, weight in vector(chunk).items()) for chunk in chunks]


def pivoted(query: list[str], chunks: list[list[str]]) -> list[float]:
    if not chunks:
        return []
    asked = _Asked(query, chunks)
    norms = [_norm(chunk) for chunk in chunks]
    mean = sum(norms) / len(norms)

    def below_the_line(norm: float) -> float:
        return asked.norm * ((0.4 * mean + 0.6 * norm) or 1.0)

    ratios = [
        math.fsum(asked.weight[t] * _saturated(asked.tf(t, chunk)) for t in asked.terms) / below_the_line(norm)
        for chunk, norm in zip(chunks, norms, strict=True)
    ]
    bound = sorted(ratios, reverse=True)[:50][-1]
    for place, chunk in enumerate(chunks):
        if ratios[place] and ratios[place] >= bound * (1 - 1e-12):
            ratios[place] += 0.2 * asked.pairs(chunk) / below_the_line(norms[place]) + 0.2 * asked.coverage(chunk)

    known = asked.own_score([word for word in query if asked.known[asked.key(word)]], below_the_line)
    all_words = asked.own_score([word for word in query if asked.counts(asked.key(word))], below_the_line)
    share = min(1.0, known / all_words) if known else 1.0
    said = sorted(word for word in query if asked.known[asked.key(word)])
    return [
        share * (1.0 if ratio and sorted(chunk) == said else _below_one(ratio / known if ratio else 0.0))
        for ratio, chunk in zip(ratios, chunks, strict=True)
    ]


class _Asked:
    """A query against the chunks: its terms are the groups of its words that have one stem."""

    def __init__(self, query: list[str], chunks: list[list[str]]) -> None:
        vocabulary = set(itertools.chain(*chunks))
        english = is_english(chunks)
        self.query = query
        self.word: dict[object, str] = {}
        for word in query:
            self.word.setdefault(self.key(word), word)
        self.terms = list(self.word)
        qtf = Counter(map(self.key, query))
        self.stop = {t: self.word[t] in ENGLISH for t in self.terms}
        self.forms = {
            t: forms(self.word[t], vocabulary, self.stop[t] or number >= 256, english)
            for number, t in enumerate(self.terms)
        }
        df = {t: sum(1 for chunk in chunks if self.tf(t, chunk)) for t in self.terms}
        self.known = {t: df[t] > 0 for t in self.terms}
        only_stops = all(self.stop[t] for t in self.terms if self.known[t])
        self.idf = {
            t: math.log(1 + len(chunks) / max(df[t], 1)) if only_stops or not self.stop[t] else 0.0 for t in self.terms
        }
        self.weight = {t: (1 + math.log(qtf[t])) * self.idf[t] for t in self.terms}
        self.norm = math.hypot(*(self.weight[t] for t in self.terms if self.known[t])) or 1.0
        counted = [t for t in self.terms if self.known[t] and self.idf[t]]
        between = [t for t in self.terms if self.known[t] and not self.idf[t]]
        self.near = sorted(counted, key=lambda t: -self.idf[t])[:32] + between[:32]
        neighbours = itertools.pairwise(self.key(word) for word in query if self.known[self.key(word)])
        self.pairs_asked = Counter(pair for pair in neighbours if set(pair) <= set(self.near))

    @staticmethod
    def key(word: str) -> object:
        return stem(word), word in ENGLISH

    def counts(self, t: object) -> bool:
        return self.known[t] or self.idf[t] > 0

    def tf(self, t: object, chunk: list[str]) -> float:
        counted = Counter(chunk)
        return math.fsum(weight * counted[word] for word, weight in self.forms[t].items())

    def stands_for(self, word: str) -> object:
        """Return the term of the query that a word of a chunk is read as: the one it matches best."""
        return max((t for t in self.near if word in self.forms[t]), key=lambda t: self.forms[t][word], default=None)

    def pairs(self, chunk: list[str]) -> float:
        seen = Counter(itertools.pairwise(map(self.stands_for, chunk)))
        return math.fsum(self._pair_weight(pair) * _saturated(seen[pair]) for pair in self.pairs_asked)

    def _pair_weight(self, pair: tuple[object, object]) -> float:
        return (1 + math.log(self.pairs_asked[pair])) * (self.idf[pair[0]] + self.idf[pair[1]]) / 2

    def coverage(self, chunk: list[str]) -> float:
        read = [self.stands_for(word) for word in chunk]
        whole = math.fsum(self.idf[t] for t in self.near)
        windows = [set(read[at : at + 24]) - {None} for at in range(len(read))]
        return max(math.fsum(self.idf[t] for t in window) for window in windows) / whole if whole else 0.0

    def own_score(self, said: list[str], below_the_line: Callable[[float], float]) -> float:
        """Return what a part of the query would score as a chunk."""
        qtf = Counter(map(self.key, said))
        pairs = math.fsum(self._pair_weight(pair) * _saturated(times) for pair, times in self.pairs_asked.items())
        unknown = math.fsum(self.idf[t] for t in qtf if not self.known[t])
        covered = math.fsum(self.idf[t] for t in self.near)
        return (
            (math.fsum(self.weight[t] * _saturated(qtf[t]) for t in qtf) + 0.2 * pairs) / below_the_line(_norm(said))
            + 0.2
            + (0.2 * unknown / covered if covered else 0.0)
        )


def _norm(words: list[str]) -> float:
    return math.hypot(*map(_saturated, Counter(words).values()))


def _saturated(tf: float) -> float:
    return tf / (tf + 1.6)


def _below_one(ratio: float) -> float:
    return ratio if ratio <= KNEE else 1 - (1 - KNEE) / (1 + ratio - KNEE)
