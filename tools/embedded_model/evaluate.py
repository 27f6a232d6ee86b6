"""Measure the GGUF file with llama.cpp, with greedy decoding unless stated.

    python tools/embedded_model/evaluate.py BUILD relevance_gen/assets/embedded.gguf [--questions
    NAME=FOLDER ...]

FOLDER holds judged questions in the BEIR layout (corpus.jsonl.gz, queries.jsonl.gz, qrels.tsv.gz);
each question is put to the chunk judged relevant, and the right answer is the sentence that shares
strictly most content words with it.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import re
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
from llama import Llama
from noise import Noise
from rows import WORD, ExampleMaker, content_words, read_paragraphs
from tokenizers import Tokenizer
from train_vocabulary import BEGIN_ID, END_ID

N_EXAMPLES = 200
N_SAMPLES = 100
LONGEST_ANSWER = 100  # tokens
LONGEST_PROMPT = 480
LONGEST_TEXT = 1000
DERAILED_BELOW = 0.6  # likeness of the answer to the nearest sentence; an answer that does not end derailed as well
SENTENCE_SPLIT = re.compile(r"(?<=[.?!])\s+")


def prompt(context: list[str], question: str) -> str:
    """Return the documented prompt form."""
    return f"Context: {' '.join(context)}\nQuestion: {question}\nAnswer:"


def report(name: str, llama: Llama, examples: list[tuple[list[str], str, str]]) -> None:
    """Answer each (context, question, right sentence) and print how often the answer is that sentence."""
    right = closest = ended = derailed = 0
    for context, question, target in examples:
        tokens = llama.continuation(llama.tokens(prompt(context, question)), END_ID, LONGEST_ANSWER)
        answer = llama.text(tokens).strip()
        right += answer == target
        likeness = {
            sentence: SequenceMatcher(None, answer, sentence, False).ratio() for sentence in context
        }
        nearest = max(likeness, key=likeness.__getitem__)
        closest += nearest == target
        ended += len(tokens) < LONGEST_ANSWER
        derailed += len(tokens) == LONGEST_ANSWER or likeness[nearest] < DERAILED_BELOW
    chance = float(np.mean([1 / len(context) for context, _, _ in examples]))
    n, n_sentences = len(examples), np.mean([len(context) for context, _, _ in examples])
    print(
        f"{name}: the right sentence word for word {right / n:.3f}, closest to the right sentence {closest / n:.3f} "
        f"(chance {chance:.3f}), ended {ended / n:.3f}, derailed {derailed / n:.3f}, n = {n}, "
        f"{n_sentences:.1f} sentences",
        flush=True,
    )


def held_out_examples(
    build: Path, tokenizer: Tokenizer, n_sentences: int
) -> list[tuple[list[str], str, str]]:
    """Draw questions about held-out text as in training."""
    maker = ExampleMaker(
        read_paragraphs(build / "prose" / "held_out.txt", tokenizer), tokenizer, seed=n_sentences
    )
    draw = random.Random(n_sentences)
    found = []
    while len(found) < N_EXAMPLES:
        context = maker.draw_context(n_sentences, 40)
        target = draw.choice(context)
        question = maker.draw_question(target, context)
        if question and len(context) == n_sentences:
            found.append(([sentence.text for sentence in context], question, target.text))
    return found


def marked_examples(build: Path, tokenizer: Tokenizer) -> list[tuple[list[str], str, str]]:
    """Draw questions about held-out text with quotation marks, backticks, brackets and lines of a table in it."""
    noise = Noise((build / "prose" / "words.txt").read_text().split(), seed=0)
    maker = ExampleMaker(
        read_paragraphs(build / "prose" / "held_out.txt", tokenizer), tokenizer, noise, seed=0
    )
    draw = random.Random(0)
    found = []
    while len(found) < N_EXAMPLES:
        sentences = [
            maker.sentence(noise.marked(sentence.text)) for sentence in maker.draw_context(5, 40)
        ]
        table = [
            maker.sentence(f"| {draw.choice(sentence.words)} | {draw.randrange(999)} |")
            for sentence in sentences[:2]
        ]
        target = draw.choice(sentences)
        context = [*table, *sentences]
        draw.shuffle(context)
        question = maker.draw_question(target, context)
        if question and len(target.tokens) < LONGEST_ANSWER:
            found.append(([sentence.text for sentence in context], question, target.text))
    return found


def judged_examples(folder: Path, llama: Llama) -> list[tuple[list[str], str, str]]:
    """Put people's questions to the chunk that answers them."""

    def read(name: str) -> dict[str, str]:
        with gzip.open(folder / name, "rt") as lines:
            return {record["_id"]: record["text"] for record in map(json.loads, lines)}

    corpus, queries, found = read("corpus.jsonl.gz"), read("queries.jsonl.gz"), []
    with gzip.open(folder / "qrels.tsv.gz", "rt") as rows:
        for query_id, chunk_id, *_ in list(csv.reader(rows, delimiter="\t"))[1:]:
            context, question = SENTENCE_SPLIT.split(corpus[chunk_id].strip()), queries[query_id]
            asked = {word.lower() for word in content_words(question)}
            shared = sorted(
                ((len(asked & {w.lower() for w in content_words(s)}), s) for s in context),
                reverse=True,
            )
            if len(shared) < 2 or shared[0][0] == shared[1][0]:
                continue
            if (
                len(llama.tokens(prompt(context, question))) <= LONGEST_PROMPT
                and len(llama.tokens(shared[0][1])) < LONGEST_ANSWER
            ):
                found.append((context, question, shared[0][1]))
    return random.Random(0).sample(found, min(N_EXAMPLES, len(found)))


def text_loss(llama: Llama, build: Path) -> tuple[float, float]:
    """Return nats a token and bits a byte on held-out paragraphs, each after the begin token, end token included."""
    total = n_tokens = n_bytes = 0.0
    for paragraph in (build / "prose" / "held_out.txt").read_text().strip().split("\n\n")[::4]:
        text = paragraph.replace("\n", " ")
        tokens = [*llama.tokens(f" {text}"), END_ID][:LONGEST_TEXT]
        logits = llama.decode(tokens[:-1], every=True).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        total += float(
            (np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(tokens) - 1), tokens[1:]]).sum()
        )
        n_tokens += len(tokens) - 1
        n_bytes += len(llama.text(tokens).encode()) - 1
    return total / n_tokens, total / n_bytes / np.log(2)


def sampled(llama: Llama, build: Path) -> tuple[float, float, list[str]]:
    """Sample texts at temperature 0.8, top-k 40; return the share of known words, of ended texts, and the texts."""
    known = {word.lower() for word in WORD.findall((build / "prose" / "train.txt").read_text())}
    draw, texts, n_ended = np.random.default_rng(0), [], 0
    for _ in range(N_SAMPLES):
        made: list[int] = []
        logits = llama.decode([BEGIN_ID])
        while len(made) < 200:
            row = logits[-1] / 0.8
            best = np.argpartition(row, -40)[-40:]
            chances = np.exp(row[best] - row[best].max())
            token = int(draw.choice(best, p=chances / chances.sum()))
            if token == END_ID:
                n_ended += 1
                break
            made.append(token)
            logits = llama.decode([token], len(made))
        texts.append(llama.text(made).strip())
    words = [word.lower() for text in texts for word in WORD.findall(text)]
    return sum(word in known for word in words) / len(words), n_ended / N_SAMPLES, texts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path, help="the folder given to corpus.py")
    parser.add_argument("model", type=Path)
    parser.add_argument("--questions", nargs="*", default=[])
    arguments = parser.parse_args()
    tiny, vocabulary = (
        Llama(arguments.model),
        Tokenizer.from_file(str(arguments.build / "vocabulary.json")),
    )
    for n in (3, 5, 8, 12, 25):
        report(
            f"held-out text, {n} sentences", tiny, held_out_examples(arguments.build, vocabulary, n)
        )
    report(
        "held-out text with marks and tables, 5 sentences",
        tiny,
        marked_examples(arguments.build, vocabulary),
    )
    for name, _, folder in (argument.partition("=") for argument in arguments.questions):
        report(f"people's questions, {name}", tiny, judged_examples(Path(folder), tiny))
    nats, bits = text_loss(tiny, arguments.build)
    print(f"held-out text: {nats:.3f} nats a token, {bits:.3f} bits a byte", flush=True)
    known_share, ended_share, samples = sampled(tiny, arguments.build)
    print(
        f"sampled: {known_share:.3f} of the words are in the training text, {ended_share:.2f} of the texts end"
    )
    print("\n".join(f"  {sample}" for sample in samples[:12]))
