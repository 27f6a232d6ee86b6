r"""Make the model's training rows from the prose: running text, and "context, question, sentence" examples.

    python tools/embedded_model/rows.py BUILD [--stage NAME]

writes `BUILD/examples/{short,medium,long}.npz`: `tokens` (rows x length, uint16) and `kinds`
(uint8), the kind of each token for the loss. An example is

    <|begin|>Context: S1 S2 ... Sn\nQuestion: words of Si\nAnswer: Si<|end|>

and further questions about the same context follow if they fit the row, so that more of the row is
copying. Many contexts are not prose (noise.py), so that the model is trained to copy and not to
prefer likely words.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from noise import Noise
from tokenizers import Tokenizer
from train_vocabulary import BEGIN_ID, END_ID

SEED = 20240229
UNTRAINED, TEXT, ANSWER, ANSWER_START, BRANCH = range(5)  # kinds of token
# A branch is a token of the answer before which the context has another one elsewhere.
N_START_TOKENS = 2  # these decide which sentence is copied
QUESTION_SHARE = 0.88  # fraction of the rows; the remaining rows are running text
MOST_QUESTIONS = 12  # of one row
FRESH_WORD_SHARE = 0.5  # questions with words that do not occur in the context
RIVAL_SHARE = 0.5  # questions with words of another sentence, fewer than of the right one
INFLECTED_SHARE = 0.15  # words of a question
NOISY_SHARE = 0.55  # contexts with sentences that are not prose
NEW_LINE_SHARE = 0.15  # contexts with a sentence a line
SAME_PLACE_SHARE = (
    0.5  # contexts of adjacent sentences; the remaining contexts are drawn from all texts
)

STOP_WORDS = frozenset(
    """
    a about after all also an and any are as at be been before but by can could did do does each for from had
    has have he her here him his how i if in into is it its just like may more most must my no not of on one
    only or other our out over same shall she should so some such than that the their them then there these they
    this those to too under up us used very was we were what when where which while who whom whose why will with
    would you your
    """.split()
)
# fmt: off
TEMPLATES = (
    "{}?", "{}", "What is {}?", "What are {}?", "What about {}?", "What does {}?", "What was {}?", "Which {}?",
    "Who {}?", "Who is {}?", "When {}?", "When was {}?", "Where is {}?", "Where {}?", "Why {}?", "Why is {}?",
    "Why are {}?", "How {}?", "How does {}?", "How do {}?", "How is {}?", "How many {}?", "How can {}?", "Is {}?",
    "Can {}?", "Does {}?", "Do {}?", "Tell me about {}.", "What is said about {}?", "Explain {}.",
    "What do we know about {}?", "What is the {}?", "What did {}?", "Who did {}?", "Where did {}?", "When did {}?",
    "How did {}?", "How long {}?", "How much {}?", "In what year {}?", "What kind of {}?", "What type of {}?",
    "Which of {}?", "What other {}?", "What was the name of {}?", "Along with {}, what else?", "{} what?", "{} who?",
)
JOINTS = (
    " ", " ", " ", " and ", " of ", " the ", " in ", " a ", " for ", " to ", " is ", " with ",
)
# fmt: on
WORD = re.compile(r"[A-Za-z0-9]+(?:['-][A-Za-z0-9]+)*")


@dataclass(frozen=True)
class Sentence:
    """A sentence with its tokens as they are after a space, and its content words in order."""

    text: str
    tokens: tuple[int, ...]
    words: tuple[str, ...]

    @property
    def word_set(self) -> frozenset[str]:
        """The content words in lower case."""
        return frozenset(word.lower() for word in self.words)


def content_words(text: str) -> tuple[str, ...]:
    """Return the content words; the first keeps its capital only if it has a capital in other sentences too."""
    words = WORD.findall(text)
    if words and words[0][1:].islower():
        words[0] = words[0].lower()
    return tuple(word for word in words if len(word) > 1 and word.lower() not in STOP_WORDS)


def read_paragraphs(path: Path, tokenizer: Tokenizer) -> list[list[Sentence]]:
    """Read a file of prose.py."""
    groups = [chunk.split("\n") for chunk in path.read_text().strip().split("\n\n")]
    flat = [line for group in groups for line in group]
    encoded = iter(tokenizer.encode_batch([f" {line}" for line in flat]))
    return [
        [Sentence(line, tuple(next(encoded).ids), content_words(line)) for line in group]
        for group in groups
    ]


class ExampleMaker:
    """Draws rows at random, repeatably.

    `noise` None keeps every context to sentences of the prose; `difficulty` scales how often a
    question's words mislead and a context is not prose.
    """

    def __init__(
        self,
        paragraphs: list[list[Sentence]],
        tokenizer: Tokenizer,
        noise: Noise | None = None,
        seed: int = SEED,
        difficulty: float = 1,
    ) -> None:
        self._paragraphs = paragraphs
        self._sentences = [sentence for paragraph in paragraphs for sentence in paragraph]
        self._tokenizer = tokenizer
        self._noise = noise
        self._difficulty = difficulty
        self._random = random.Random(seed)
        self._context, self._question, self._answer = (
            tokenizer.encode(text).ids for text in ("Context:", "\nQuestion:", "\nAnswer:")
        )

    def sentence(self, text: str) -> Sentence:
        """Make a sentence of any text."""
        return Sentence(text, tuple(self._tokenizer.encode(f" {text}").ids), content_words(text))

    def draw_context(self, n_sentences: int, longest: int) -> list[Sentence]:
        """Draw different sentences of at most `longest` tokens, neighbours half of the time."""
        if self._random.random() < SAME_PLACE_SHARE:
            start = self._random.randrange(len(self._sentences) - 4 * n_sentences)
            pool = self._sentences[start : start + 4 * n_sentences]
        else:
            pool = self._random.choices(self._sentences, k=4 * n_sentences)
        chosen = {
            sentence.text: sentence
            for sentence in pool
            if len(sentence.tokens) <= longest and sentence.words
        }
        return list(itertools.islice(chosen.values(), n_sentences))

    def disturb(self, context: list[Sentence], longest: int) -> list[Sentence]:
        """Replace some sentences of a context by noise, or their words by other words."""
        noise, share = self._noise, self._random.uniform(0.3, 1)
        if noise is None or self._random.random() > NOISY_SHARE * self._difficulty:
            return context
        disturbed = [
            self.sentence(noise.disturb(s.text)) if self._random.random() < share else s
            for s in context
        ]
        chosen = {s.text: s for s in disturbed if len(s.tokens) <= longest and s.words}
        return list(chosen.values())

    def draw_question(self, target: Sentence, context: list[Sentence]) -> str | None:
        """Ask for a sentence so that it shares strictly most content words; None where every try failed."""
        draw = self._random
        for _ in range(4):
            count = min(len(target.words), draw.choice((1, 2, 2, 3, 3, 4, 5, 6)))
            if draw.random() < 0.4:
                start = draw.randrange(len(target.words) - count + 1)
                words = list(target.words[start : start + count])
            else:
                words = [
                    target.words[i] for i in sorted(draw.sample(range(len(target.words)), count))
                ]
            words = [
                inflected(word, draw)
                if draw.random() < INFLECTED_SHARE * self._difficulty
                else word
                for word in words
            ]
            if draw.random() < 0.2:
                draw.shuffle(words)
            others = [sentence for sentence in context if sentence is not target]
            if others and draw.random() < RIVAL_SHARE * self._difficulty:
                rival = draw.choice(others).words
                words += draw.sample(rival, min(len(rival), draw.randint(1, max(1, count - 1))))
            if draw.random() < FRESH_WORD_SHARE * self._difficulty:
                for _ in range(draw.randint(1, 3)):
                    fresh = draw.choice(self._sentences).words
                    if fresh and not any(fresh[-1].lower() in other.word_set for other in context):
                        words.insert(draw.randrange(len(words) + 1), fresh[-1])
            asked = {word.lower() for word in words}
            shared = len(asked & target.word_set)
            if not shared or any(len(asked & other.word_set) >= shared for other in others):
                continue
            text = words[0] + "".join(draw.choice(JOINTS) + word for word in words[1:])
            question = draw.choice(TEMPLATES).format(text)
            return question[0].upper() + question[1:] if draw.random() < 0.7 else question
        return None

    def question_row(self, length: int, longest: int) -> tuple[list[int], list[int]]:
        """Return tokens and kinds of one context with the maximum number of questions that fit."""
        budget = self._random.uniform(0.25, 0.75) * length
        context: list[Sentence] = []
        for sentence in self.disturb(drawn := self.draw_context(40, longest), longest):
            budget -= len(sentence.tokens)
            if budget < 0 and len(context) > 1:
                break
            context.append(sentence)
        is_prose = all(sentence in drawn for sentence in context)
        tokens = [BEGIN_ID, *self._context, *self._joined(context)]
        kinds = [UNTRAINED] * (1 + len(self._context))
        kinds += [TEXT if is_prose else UNTRAINED] * (len(tokens) - len(kinds))
        following: dict[int, set[int]] = {}
        for token, after in itertools.pairwise(tokens):
            following.setdefault(token, set()).add(after)
        for target in itertools.islice(
            itertools.cycle(self._random.sample(context, len(context))), MOST_QUESTIONS
        ):
            question = self.draw_question(target, context)
            if question is None:
                continue
            asked = self._question + self._tokenizer.encode(f" {question}").ids + self._answer
            if len(tokens) + len(asked) + len(target.tokens) + 1 > length:
                break
            tokens += [*asked, *target.tokens, END_ID]
            kinds += [UNTRAINED] * len(asked) + [ANSWER_START] * N_START_TOKENS
            pairs = list(itertools.pairwise([*target.tokens, END_ID]))[N_START_TOKENS - 1 :]
            kinds += [BRANCH if len(following.get(token, ())) > 1 else ANSWER for token, _ in pairs]
        return tokens[:length], kinds[:length]

    def _joined(self, context: list[Sentence]) -> list[int]:
        """Return the tokens of a context's text, on one line or with a line for each sentence."""
        if self._random.random() < NEW_LINE_SHARE:
            return self._tokenizer.encode(
                " " + "\n".join(sentence.text for sentence in context)
            ).ids
        return list(itertools.chain.from_iterable(sentence.tokens for sentence in context))

    def text_row(self, length: int) -> tuple[list[int], list[int]]:
        """Pack running text: whole paragraphs, each begun and ended."""
        tokens: list[int] = []
        at = self._random.randrange(len(self._paragraphs))
        while len(tokens) < length:
            paragraph = self._paragraphs[at % len(self._paragraphs)]
            tokens += [
                BEGIN_ID,
                *itertools.chain.from_iterable(s.tokens for s in paragraph),
                END_ID,
            ]
            at = (
                at + 1
                if self._random.random() < 0.5
                else self._random.randrange(len(self._paragraphs))
            )
        kinds = [UNTRAINED if token == BEGIN_ID else TEXT for token in tokens]
        return tokens[:length], kinds[:length]

    def rows(self, n_rows: int, length: int, longest: int) -> dict[str, np.ndarray]:
        """Make an array of rows, padded with end tokens that are not trained."""
        tokens = np.full((n_rows, length), END_ID, np.uint16)
        kinds = np.full((n_rows, length), UNTRAINED, np.uint8)
        for i in range(n_rows):
            is_question = self._random.random() < QUESTION_SHARE
            row, kind = self.question_row(length, longest) if is_question else self.text_row(length)
            tokens[i, : len(row)], kinds[i, : len(row)] = row, kind
        return {"tokens": tokens, "kinds": kinds}


def inflected(word: str, draw: random.Random) -> str:
    """Return another form of a word, right or wrong English: the question's words need not be the sentence's."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) > len(ending) + 3:
            return word[: -len(ending)]
    return word + draw.choice(("s", "ed", "ing")) if word.isalpha() else word


STAGES = {  # name: rows, length, longest sentence, difficulty
    "short": (32_000, 192, 32, 0.3),
    "medium": (28_000, 448, 80, 1),
    "long": (7_000, 896, 100, 1),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path, help="the folder given to corpus.py")
    parser.add_argument("--stage", choices=STAGES, help="make the rows of one stage only")
    arguments = parser.parse_args()
    build = arguments.build
    vocabulary = Tokenizer.from_file(str(build / "vocabulary.json"))
    prose = read_paragraphs(build / "prose" / "train.txt", vocabulary)
    (build / "examples").mkdir(exist_ok=True)
    for seed, (name, (n_rows, length, longest, difficulty)) in enumerate(STAGES.items(), SEED):
        if arguments.stage in {None, name}:
            noise = Noise((build / "prose" / "words.txt").read_text().split(), seed)
            rows = ExampleMaker(prose, vocabulary, noise, seed, difficulty).rows(
                n_rows, length, longest
            )
            np.savez(build / "examples" / f"{name}.npz", **rows)
            print(
                name,
                rows["tokens"].shape,
                np.bincount(rows["kinds"].ravel()) / rows["kinds"].size,
                flush=True,
            )
