"""Measure constrained output without a model: ``python -m bench.constraints``; half a minute.

With a vocabulary of 152,000 tokens and random logits: the time of a step in addition to ordinary
sampling, the wait for a mask that is computed while the model decodes, and the time that a schema
needs before its first step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bench.recording import Record, add_quick
from relevance_gen.generation.constraints.grammar_compiler import Grammars
from relevance_gen.generation.constraints.token_constraint import GrammarSource, MaskTimeBudget
from relevance_gen.generation.sampling.sampler import sample
from relevance_gen.types import GenerationRequest

N_VOCAB = 152_000
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 5},
        "code": {"type": "string", "pattern": "^[a-z]{3,9}$"},
    },
    "required": ["name", "age", "email", "born", "tags", "code"],
    "additionalProperties": False,
}
ANY = GenerationRequest("")
END = 0
N_STEPS = 150
DECODE_S = 0.01
"""Sleep that replaces a step of the model; both release the interpreter's lock."""


def pieces() -> list[bytes]:
    """Return a vocabulary: an end token, all bytes, and words with and without a space, a quotation mark or a colon."""
    chance = np.random.default_rng(0)
    words: dict[bytes, None] = {bytes([byte]): None for byte in range(256)}
    letters = np.array(list("eeeettaaooiinnsshhrrddluwmfcgypbvk"))
    forms = [" {}"] * 5 + ['"{}":', '{}"', "{}", "{}", "{}"]
    while len(words) < N_VOCAB - 1:
        word = "".join(chance.choice(letters, chance.integers(2, 9)))
        words[forms[chance.integers(len(forms))].format(word).encode()] = None
    return [b"", *words]


def measure(record: Record, n_texts: int) -> None:
    """Draw texts, and record the processor's time of a step."""
    vocabulary = pieces()
    grammars = Grammars(vocabulary)
    source = GrammarSource("json_schema", json.dumps(SCHEMA))
    started = time.perf_counter()
    grammar = grammars.compile(source).result()
    record.add(
        "Constrained output, V = 152,000",
        "the first schema",
        (time.perf_counter() - started) * 1000,
        "ms",
    )
    again = []
    for _ in range(5):
        started = time.perf_counter()
        grammars.compile(source).result()
        again.append((time.perf_counter() - started) * 1000)
    record.add(
        "Constrained output, V = 152,000", "a schema seen before", statistics.median(again), "ms"
    )

    chance = np.random.default_rng(1)
    logits = chance.normal(0, 3, (1, N_VOCAB)).astype(np.float32)
    logits[0, [token for token, piece in enumerate(vocabulary) if piece.endswith(b'"')]] += (
        6  # strings must end
    )
    extra: list[float] = []
    for _ in range(n_texts):
        constraint = grammar.begin([END], MaskTimeBudget())
        for _ in range(N_STEPS):
            uniform = chance.random(1)
            times = [time.thread_time()]
            mask = constraint.mask(may_end=True)
            token = int(sample(logits, [ANY], uniform, masks={0: mask})[0])
            if token != END:
                constraint.accept(token)
            times.append(time.thread_time())
            sample(logits, [ANY], uniform)
            times.append(time.thread_time())
            extra.append((times[1] - times[0] - (times[2] - times[1])) * 1000)
            if token == END or constraint.is_complete:
                break
    for what, value in (
        ("mean", np.mean(extra)),
        ("99 of 100 are below", np.percentile(extra, 99)),
    ):
        bar = 0.3 if what == "mean" else None
        record.add(
            "A step beyond an ordinary draw, V = 152,000",
            what,
            float(value),
            "ms",
            at_most=bar,
            places=3,
        )
    waits = [wait for number in range(n_texts) for wait in waited(grammars, logits, number, chance)]
    for what, value in (
        ("half are below", np.median(waits)),
        ("99 of 100 are below", np.percentile(waits, 99)),
    ):
        bar = 2 if what.startswith("99") else None
        record.add(
            "A step waits for a mask, V = 152,000", what, float(value), "ms", at_most=bar, places=3
        )
    grammars.close()


def waited(
    grammars: Grammars, logits: np.ndarray, number: int, chance: np.random.Generator
) -> list[float]:
    """Return the milliseconds that each step waits for its mask, in a text of an uncached schema."""
    source = GrammarSource("json_schema", json.dumps({**SCHEMA, "title": f"{number}"}))
    constraint = grammars.compile(source).result().begin([END], MaskTimeBudget())
    waits = []
    with ThreadPoolExecutor(1) as thread:
        for _ in range(N_STEPS):
            mask = thread.submit(constraint.mask, may_end=True)
            time.sleep(DECODE_S)
            started = time.perf_counter()
            allowed = mask.result()
            waits.append((time.perf_counter() - started) * 1000)
            token = int(sample(logits, [ANY], chance.random(1), masks={0: allowed})[0])
            if token != END:
                constraint.accept(token)
            if token == END or constraint.is_complete:
                break
    return waits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_quick(parser)
    args = parser.parse_args()
    with Record("constraints", args) as record:
        measure(record, 3 if args.quick else 30)


if __name__ == "__main__":
    main()
