"""Slow reference implementation of search: dicts and loops, from the documented formulas."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import Stemmer

from relevance_gen.text.normalization import fold_character
from relevance_gen.text.question_words import OTHER_QUESTION_WORDS, QUESTION_WORDS
from relevance_gen.text.stop_words import ENGLISH_MARKERS, ENGLISH_STOP_WORDS, OTHER_MARKERS
from relevance_gen.text.tokenization import tokenize

KNEE = 1 - 5e-7
PAIRS, TRIPLES, WORD = "pairs", "triples", "word"
_stem = Stemmer.Stemmer("english").stemWord


# ── Terms ─────────────────────────────────────────────────────────────────────────────────────────


def kind(character: str) -> str:
    """Return the script class of a folded character; "" for white space and punctuation."""
    code = ord(character)
    emoji = unicodedata.category(character) == "So" and (0x2600 <= code < 0x27C0 or code >= 0x1F000)
    if not (unicodedata.category(character)[0] in "LMN" or emoji):
        return ""
    if (emoji and code >= 0x10000) or 0x20000 <= code < 0x40000:
        return character  # each such character is a separate word
    if 0x3000 <= code < 0xA490 or 0xAC00 <= code < 0xE000 or emoji:
        return PAIRS
    if 0x0E00 <= code < 0x0F00 or 0x1000 <= code < 0x10A0 or 0x1780 <= code < 0x1800:
        return TRIPLES
    return WORD


def terms(text: str) -> list[str]:
    """Cut a text into terms, in reading order: identifiers before their parts."""
    text = (
        text.encode("utf-16-le", "surrogatepass")
        .decode("utf-16-le", "replace")
        .replace("\ufffd", " ")
    )
    folded = "".join(
        c if c.isascii() or _is_emoji(c) else fold_character(c)
        for c in unicodedata.normalize("NFC", text)
    )
    folded = _with_toneless(unicodedata.normalize("NFC", folded))
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


def _with_toneless(folded: str) -> str:
    """Write each word with a letter that only Vietnamese has a second time, with the plain letters."""
    runs = [
        "".join(run) for _, run in itertools.groupby(folded, lambda c: kind(c) == WORD and c != "_")
    ]
    return "".join(
        f"{run} {_toneless(run).lower()}" if _toneless(run) != run else run for run in runs
    )


def _toneless(word: str) -> str:
    plain = {"ơ": "o", "ư": "u"}
    return "".join(
        unicodedata.normalize("NFD", c).translate(
            {ord(one): other for one, other in plain.items()}
        )[0]
        if 0x1EA0 <= ord(c) < 0x1EFA or c in plain
        else c
        for c in word
    )


def _without_article(word: str) -> str:
    for article in ("وال", "فال", "بال", "كال", "ولل", "ال", "لل"):
        if word.startswith(article):
            return word[len(article) :] if len(word) >= len(article) + 2 else word
    return word


def _is_emoji(character: str) -> bool:
    return kind(character) in (PAIRS, character) and unicodedata.category(character) == "So"


def identifier(word: str) -> list[str]:
    """Return a word, lower-cased, and its parts: ``HTTPServer_v2`` → httpserver_v2, http, server, v2."""
    cut = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<!^)(?=[A-Z][a-z])", "_", word)
    parts = [part for part in cut.split("_") if part]
    if parts == [word]:
        return [_without_article(word.lower())]
    return [part.lower() for part in [word, *parts]] if parts else []


# ── Matching ──────────────────────────────────────────────────────────────────────────────────────


def stem(word: str) -> str:
    if not word.isascii() or len(word) >= 64:
        return word
    root = _stem(word)
    is_plural = len(root) > 3 and re.fullmatch("[^aeiouy0-9_]{2,}[aeiou]?s", root)
    return root[:-1] if is_plural else root


def can_inflect(word: str) -> bool:
    return (
        len(word) >= 3
        and len(word.encode()) < 64
        and all(
            kind(character) == WORD and character != "_" and character not in "0123456789"
            for character in word
        )
    )


def is_english(chunks: Sequence[Sequence[str]]) -> bool:
    words = Counter(itertools.chain(*chunks))
    other = [terms(text)[0] for text in OTHER_MARKERS]
    return sum(words[marker] for marker in ENGLISH_MARKERS) >= sum(
        words[marker] for marker in other
    )


def similarity(word: str, other: str) -> float:
    shared = 0
    while shared < min(len(word), len(other)) and word[shared] == other[shared]:
        shared += 1
    if not word[0].isascii() and word.encode()[:6] != other.encode()[:6]:
        return 0.0  # three letters, but of words that mix alphabets
    share = shared / max(len(word), len(other))
    is_latin = not "\u0370" <= word[0] < "\u1e00"
    return (
        share
        if (shared >= 4 and share >= 0.5) or (shared == 3 and share >= 0.6 and not is_latin)
        else 0.0
    )


def forms(word: str, vocabulary: set[str], stop: bool, english: bool) -> dict[str, float]:
    """Return the vocabulary words that a query word matches, with their weights."""
    own = {word: 1.0} if word in vocabulary else {}
    if stop:
        return own
    size = {PAIRS: 2, TRIPLES: 3}.get(kind(word[0]), 0)
    if len(word) < size:
        return {
            term: 1 / (size - len(word) + 1) if len(term) == size else 1.0
            for term in vocabulary
            if word in term
        }
    if not can_inflect(word):
        return own
    found = {}
    for other in filter(can_inflect, vocabulary - ENGLISH_STOP_WORDS):
        by_prefix = similarity(word, other) if not english or not word.isascii() else 0.0
        found[other] = 1.0 if stem(other) == stem(word) else by_prefix
    return {other: weight for other, weight in found.items() if weight} | own


# ── Scores ────────────────────────────────────────────────────────────────────────────────────────


def scores(
    query: str,
    texts: Sequence[str],
    weighting: str = "pivoted",
    titles: Sequence[str] | None = None,
) -> list[float]:
    """Score all chunks against the query; a blank title is ignored."""
    titles = [title if title.strip() else "" for title in titles or [""] * len(texts)]
    chunks = [terms(title) + terms(text) for title, text in zip(titles, texts, strict=True)]
    if weighting == "cosine":
        return cosine(terms(query), chunks)
    return pivoted(terms(query), chunks, query.isascii(), titles)


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
    return [
        math.fsum(asked.get(term, 0.0) * weight for term, weight in vector(chunk).items())
        for chunk in chunks
    ]


def pivoted(
    query: list[str], chunks: list[list[str]], query_is_ascii: bool, titles: list[str]
) -> list[float]:
    if not chunks:
        return []
    asked = _Asked(query, chunks, query_is_ascii)
    norms = [norm(chunk) for chunk in chunks]
    mean = sum(norms) / len(norms)
    reads_letters = not (is_english(chunks) and query_is_ascii)

    def pivoted_norm(length: float) -> float:
        return asked.norm * ((0.4 * mean + 0.6 * length) or 1.0)

    sums = [
        math.fsum(asked.weight[t] * _saturated(asked.tf(t, chunk)) for t in asked.terms)
        / pivoted_norm(length)
        for chunk, length in zip(chunks, norms, strict=True)
    ]
    subject = [t for t in asked.terms if not asked.stop[t] and asked.known[t]]
    if subject:  # function words alone find nothing
        sums = [
            one if any(asked.tf(t, chunk) for t in subject) else 0.0
            for one, chunk in zip(sums, chunks, strict=True)
        ]
    promising = _best(sums, range(len(chunks)), 50)
    for place in promising:
        chunk = chunks[place]
        sums[place] += 0.2 * asked.pairs(chunk) / pivoted_norm(norms[place]) + 0.2 * asked.coverage(
            chunk
        )
        sums[place] += 0.05 * asked.head(chunk) + 0.2 * asked.run(chunk) ** 3
        sums[place] += 0.1 * asked.title(terms(titles[place])) / titles.count(titles[place])
    known_words = [word for word in query if asked.known[asked.key(word)]]
    own_cosine = asked.own_cosine(known_words, pivoted_norm)
    if reads_letters:
        some = _best(sums, promising, 25)
        for place, share in zip(
            some, letter_shares(query, [chunks[place] for place in some]), strict=True
        ):
            sums[place] += 0.6 * own_cosine * share

    title = 0.1 if any(titles) else 0.0
    known = asked.own_score(known_words, pivoted_norm, reads_letters, title)
    all_words = asked.own_score(
        [word for word in query if asked.counts(asked.key(word))],
        pivoted_norm,
        reads_letters,
        title,
    )
    known_share = min(1.0, known / all_words) if known else 1.0
    verbatim = [
        bool(one) and sorted(chunk) == sorted(known_words)
        for one, chunk in zip(sums, chunks, strict=True)
    ]
    own = [
        1.0 if same else _below_one(one / known if one else 0.0)
        for one, same in zip(sums, verbatim, strict=True)
    ]
    alike = dict.fromkeys(range(len(chunks)), 0.0)
    some = _best(own, promising, 50)
    if some:
        alike |= zip(
            some,
            top_similarity(
                [chunks[place] for place in some], [own[place] for place in some], chunks
            ),
            strict=True,
        )
    return [
        known_share * (1.0 if same else ((one + 1.2 * alike[place]) / 2.2) ** 0.7)
        for place, (one, same) in enumerate(zip(own, verbatim, strict=True))
    ]


def _best(scores: Sequence[float], places: Iterable[int], n: int) -> list[int]:
    """Return the places of the best n positive scores, and of all that tie with the last."""
    positive = [place for place in places if scores[place]]
    bound = sorted((scores[place] for place in positive), reverse=True)[:n][-1:]
    return [place for place in positive if scores[place] >= bound[0] * (1 - 1e-12)]


def top_similarity(
    chunks: list[list[str]], scores: list[float], everything: list[list[str]]
) -> list[float]:
    """Return what chunks are given for being like the best five of them."""
    bags = [
        Counter(_word_prefix(word) for word in chunk if word not in ENGLISH_STOP_WORDS)
        for chunk in chunks
    ]
    if len(chunks) < 2 or not any(bags):
        return scores
    sample = [
        {_word_prefix(word) for word in chunk if word not in ENGLISH_STOP_WORDS}
        for chunk in sorted(everything, key=_hash)[:128]
    ]
    idf = {
        word: math.log(1 + len(bags) / sum(word in bag for bag in bags))
        + math.log(1 + len(sample) / max(1, sum(word in chunk for chunk in sample)))
        for word in set(itertools.chain(*bags))
    }
    vectors = [{word: _saturated(tf) * idf[word] for word, tf in bag.items()} for bag in bags]
    norms = [math.hypot(*vector.values()) or 1.0 for vector in vectors]
    best = _best(scores, range(len(scores)), 5)
    weight = {place: (scores[place] / max(scores)) ** 24 for place in best}
    return [
        min(
            max(scores),
            math.fsum(
                weight[j]
                / math.fsum(weight.values())
                * scores[j]
                * _dot(vectors[i], vectors[j])
                / norms[i]
                / norms[j]
                for j in best
            ),
        )
        for i in range(len(chunks))
    ]


def _word_prefix(word: str) -> bytes:
    """Return the bytes of the first five letters, as many as five letters like the first have."""
    return word.encode()[: 5 * min(3, len(word[0].encode()))]


def _hash(chunk: list[str]) -> int:
    """Hash the words of a chunk independently of their order."""
    hashed = sum(int(tokenize([word]).ids[0]) for word in chunk) * 0x9E3779B97F4A7C15 % (1 << 64)
    return hashed ^ (hashed >> 32)


def _dot(one: dict[bytes, float], other: dict[bytes, float]) -> float:
    return math.fsum(value * other.get(word, 0.0) for word, value in one.items())


def letter_shares(query: list[str], chunks: list[list[str]]) -> list[float]:
    """Return how much of the query's 4-grams each chunk has."""

    def grams(words: list[str]) -> Counter[str]:
        some = [word for word in words if kind(word[0]) not in (PAIRS, TRIPLES)]
        return Counter(word[at : at + 4] for word in some for at in range(max(1, len(word) - 3)))

    bags, asked = [grams(chunk) for chunk in chunks], grams(query)
    mean = sum(math.hypot(*map(_saturated, bag.values())) for bag in bags) / max(1, len(bags))
    df = {gram: sum(gram in bag for bag in bags) for gram in asked}
    weight = {
        gram: (1 + math.log(n)) * math.log(1 + len(bags) / df[gram])
        for gram, n in asked.items()
        if df[gram]
    }

    def score(bag: Counter[str], norm: float) -> float:
        return math.fsum(one * _saturated(bag[gram]) for gram, one in weight.items()) / (
            (0.4 * mean + 0.6 * norm) or 1
        )

    own = score(asked, math.hypot(*(_saturated(asked[gram]) for gram in weight)))
    return [
        min(1.0, score(bag, math.hypot(*map(_saturated, bag.values()))) / own) if own else 0.0
        for bag in bags
    ]


class _Asked:
    """A query against the chunks: its terms are the groups of its words that have one stem."""

    def __init__(self, query: list[str], chunks: list[list[str]], query_is_ascii: bool) -> None:
        vocabulary = set(itertools.chain(*chunks))
        english = is_english(chunks)
        self.query = query
        self.word: dict[object, str] = {}
        for word in query:
            self.word.setdefault(self.key(word), word)
        self.terms = list(self.word)
        qtf = Counter(map(self.key, query))
        self.stop = {t: self.word[t] in ENGLISH_STOP_WORDS for t in self.terms}
        self.asks = {t: self.word[t] in QUESTION_WORDS for t in self.terms}
        form = self._form(query_is_ascii and english, english)
        if any(not self.stop[t] and t not in form for t in self.terms):
            self.stop |= dict.fromkeys(form, True)
            self.asks |= dict.fromkeys(form, True)
        self.forms = {
            t: forms(self.word[t], vocabulary, self.stop[t] or number >= 256, english)
            for number, t in enumerate(self.terms)
        }
        df = {t: sum(1 for chunk in chunks if self.tf(t, chunk)) for t in self.terms}
        self.known = {t: df[t] > 0 for t in self.terms}
        others = sum(not self.stop[t] for t in self.terms if self.known[t])
        self.idf = {
            t: math.log(1 + len(chunks) / max(df[t], 1)) * self._share(t, others)
            for t in self.terms
        }
        self.weight = {t: (1 + math.log(qtf[t])) * self.idf[t] for t in self.terms}
        self.norm = math.hypot(*(self.weight[t] for t in self.terms if self.known[t])) or 1.0
        known = [t for t in self.terms if self.known[t] and self.idf[t]]
        between = [t for t in self.terms if self.known[t] and not self.idf[t]]
        self.near = sorted(known, key=lambda t: -self.idf[t])[:32] + between[:32]
        neighbors = itertools.pairwise(
            self.key(word) for word in query if self.known[self.key(word)]
        )
        self.pairs_asked = Counter(pair for pair in neighbors if set(pair) <= set(self.near))

    def _share(self, t: object, others: int) -> float:
        """Return the fraction of its idf that a term keeps, given the number of subject words."""
        if not self.stop[t] or not others:
            return 1.0
        return 0.0 if self.asks[t] or not self.known[t] or others > 3 else 2.0 / 2**others

    def _form(self, query_is_plain: bool, english: bool) -> set[object]:
        """Return the terms that only make the query a question, without English function words."""
        form = set()
        if len(self.query) <= 64:
            frame = {
                place
                for place, word in enumerate(self.query)
                if (word in ("many", "much") and self.query[place - 1 : place] == ["how"])
                or (
                    re.fullmatch("(kind|type|sort|form)s?|(variet|categor)(y|ies)", word)
                    and re.fullmatch(
                        "(what|which|any) of", " ".join(self.query[place - 1 : place + 2 : 2])
                    )
                    and place
                )
                or (
                    re.fullmatch("happen(s|ed)?|done", word)
                    and {"what", "how", "why"} & set(self.query[max(0, place - 8) : place])
                )
            }
            form = {self.key(self.query[place]) for place in frame}
            form -= {self.key(word) for place, word in enumerate(self.query) if place not in frame}
        if not query_is_plain:
            asking = {
                word
                for words in OTHER_QUESTION_WORDS
                for word in terms(words)
                if not english or not word[0].isascii()
            }
            form |= {t for t in self.terms if self.word[t] in asking}
        return form

    @staticmethod
    def key(word: str) -> object:
        return stem(word), word in ENGLISH_STOP_WORDS

    def counts(self, t: object) -> bool:
        return self.known[t] or self.idf[t] > 0

    def tf(self, t: object, chunk: list[str]) -> float:
        counts = Counter(chunk)
        return math.fsum(weight * counts[word] for word, weight in self.forms[t].items())

    def stands_for(self, word: str) -> object:
        """Return the term of the query that a word of a chunk is read as: the one it matches best."""
        return max(
            (t for t in self.near if word in self.forms[t]),
            key=lambda t: self.forms[t][word],
            default=None,
        )

    def pairs(self, chunk: list[str]) -> float:
        seen = Counter(itertools.pairwise(map(self.stands_for, chunk)))
        return math.fsum(
            self._pair_weight(pair) * _saturated(seen[pair]) for pair in self.pairs_asked
        )

    def _pair_weight(self, pair: tuple[object, object]) -> float:
        return (1 + math.log(self.pairs_asked[pair])) * (self.idf[pair[0]] + self.idf[pair[1]]) / 2

    def coverage(self, chunk: list[str]) -> float:
        read = self.read_in_windows(chunk)
        whole = math.fsum(self.idf[t] for t in self.near)
        windows = [set(read[at : at + 24]) - {None} for at in range(len(read))]
        sums = [math.fsum(self.idf[t] for t in window) for window in windows]
        return max(sums, default=0.0) / whole if whole else 0.0

    def read_in_windows(self, chunk: list[str]) -> list[object]:
        """Return the terms of a chunk's words, without numbers that match no word of the query."""
        read = [(word, self.stands_for(word)) for word in chunk]
        return [term for word, term in read if term is not None or not is_number(word)]

    def head(self, chunk: list[str]) -> float:
        whole = math.fsum(self.idf[t] for t in self.near)
        begins = set(self.read_in_windows(chunk)[:16]) - {None}
        return math.fsum(self.idf[t] for t in begins) / whole if whole else 0.0

    def run(self, chunk: list[str]) -> float:
        """Return the weight of the longest run whose every two neighbors are neighbors in the query, too."""

        def weigh(words: list[object]) -> float:
            return math.fsum(max(0.3, self.idf[t]) for t in words)

        read = [self.stands_for(word) for word in chunk]
        runs: list[list[object]] = [[]]
        for left, right in itertools.pairwise(read):
            if (left, right) in self.pairs_asked:
                runs[-1] = [*(runs[-1] or [left]), right]
            else:
                runs.append([])
        whole = weigh([t for t in map(self.key, self.query) if t in self.near])
        return min(1.0, max(map(weigh, runs)) / whole) if whole else 0.0

    def title(self, title: list[str]) -> float:
        unique = {word for word in title if word not in ENGLISH_STOP_WORDS}
        found = {word: self.stands_for(word) for word in unique}
        found = {word: t for word, t in found.items() if t is not None and self.idf[t]}
        whole = math.fsum(self.idf[t] for t in self.near)
        share = math.fsum(self.idf[t] for t in set(found.values())) / whole if found else 0.0
        return math.sqrt(share) * len(found) / len(unique) if found else 0.0

    def own_cosine(self, said: list[str], pivoted_norm: Callable[[float], float]) -> float:
        qtf = Counter(map(self.key, said))
        return math.fsum(self.weight[t] * _saturated(qtf[t]) for t in qtf) / pivoted_norm(
            norm(said)
        )

    def own_score(
        self,
        said: list[str],
        pivoted_norm: Callable[[float], float],
        reads_letters: bool,
        title: float,
    ) -> float:
        """Return the score of a query part, used as a chunk."""
        pairs = math.fsum(
            self._pair_weight(pair) * _saturated(times) for pair, times in self.pairs_asked.items()
        )
        unknown = math.fsum(
            self.idf[t] for t in {self.key(word) for word in said} if not self.known[t]
        )
        covered = math.fsum(self.idf[t] for t in self.near)
        return (
            self.own_cosine(said, pivoted_norm) * (1.6 if reads_letters else 1.0)
            + 0.2 * pairs / pivoted_norm(norm(said))
            + (0.25 + title) * (1 + (unknown / covered if covered else unknown))
            + (0.2 if self.pairs_asked else 0.0)
        )


def norm(words: list[str]) -> float:
    squares = {True: 0.0, False: 0.0}
    for word, tf in Counter(words).items():
        squares[is_number(word)] += _saturated(tf) ** 2
    return math.sqrt(squares[False] + min(squares[True], 0.1 * squares[False]))


def _saturated(tf: float) -> float:
    return tf / (tf + 1.6)


def _below_one(ratio: float) -> float:
    return ratio if ratio <= KNEE else 1 - (1 - KNEE) / (1 + ratio - KNEE)


def is_number(word: str) -> bool:
    """Return whether a word begins and ends with a digit, and does not look like a year."""
    return re.fullmatch("[0-9]|(?!(19|20)..$)[0-9].*[0-9]", word) is not None
