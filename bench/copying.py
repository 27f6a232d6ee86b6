"""Measure guessing from the prompt (`prompt_lookup`): ``python -m bench.copying``; about ten minutes on 2 quiet cores.

The answers copy from their prompts in spans of 8 to 24 tokens, with others between them. The models are of random
weights and have nothing to say that could be copied, so their logits are changed after they were computed. How often a
guess is right is thus that of the answers made here; what a batch costs is the model's own.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from bench import generation
from bench.recording import Record, add_quick
from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.options import ModelOptions
from relevance_gen.machine import usable_cores
from relevance_gen.types import GenerationRequest

N_GUESSED = 8
CASES = (
    # name, others, tokens that each of them guesses, bar
    ("alone", 0, 0, 1.25),
    ("beside 1 that guesses too", 1, N_GUESSED, 1.0),
    ("beside 3 that guess too", 3, N_GUESSED, 0.95),
    ("beside 16 that do not guess", 16, 0, 0.95),
)


class Copyist:
    """A model whose likeliest token is always the next of an answer that it was given for each prompt.

    It computes all that it would compute otherwise; only a random model has nothing to say that could be copied.

    Args:
        model: whose logits are changed.
        answers: prompt as bytes to the tokens to say.
    """

    def __init__(self, model: Decoder, answers: dict[bytes, np.ndarray]) -> None:
        self._model = model
        self._answers = answers
        self._prompts: dict[int, np.ndarray] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def prefill(self, slots: list[int], slices: list[np.ndarray], starts: list[int]) -> np.ndarray:
        """Compute slices, and prefer the answer's first token after the last of a prompt."""
        logits = self._model.prefill(slots, slices, starts)
        for row, slot, tokens, start in zip(logits, slots, slices, starts, strict=True):
            self._prompts[slot] = np.concatenate((self._prompts[slot], tokens)) if start else tokens
            answer = self._answers.get(self._prompts[slot].tobytes())
            if answer is not None:
                row[answer[0]] = 1e4
        return logits

    def decode(self, slots: list[int], tokens: list[int], positions: list[int]) -> np.ndarray:
        """Compute rows, and prefer what the answer says after each."""
        logits = self._model.decode(slots, tokens, positions)
        for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            prompt = self._prompts[slot]
            logits[row, self._answers[prompt.tobytes()][position + 1 - len(prompt)]] = 1e4
        return logits

    def copy(self, source: int, target: int) -> None:
        """Move a slot."""
        self._prompts[target] = self._prompts[source]
        self._model.copy(source, target)


def copied(prompt: np.ndarray, length: int, seed: int) -> np.ndarray:
    """Return an answer that copies from its prompt: spans of 8 to 24 tokens, and two or three others between them."""
    chance = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < length:
        start = chance.integers(0, len(prompt) - 24)
        parts += [
            prompt[start : start + chance.integers(8, 25)],
            chance.choice(prompt, chance.integers(2, 4)),
        ]
    return np.concatenate(parts)[:length]


def copying_seconds(
    model: Decoder, n_others: int, n_others_guess: int, prompt_lookup: int
) -> float:
    """Serve requests whose answers copy from their prompts, one of them with `prompt_lookup`, all at once."""
    n_prompt, n_new = (400, 192) if n_others < 4 else (100, 64)
    texts = [generation.prompt_text(n_prompt, seed) for seed in range(1 + n_others)]
    prompts = [model.tokenize(text, 0) for text in texts]
    answers = {
        prompt.tobytes(): copied(prompt, n_new + 1, seed) for seed, prompt in enumerate(prompts)
    }
    guesses = [prompt_lookup, *[n_others_guess] * n_others]
    requests = [
        GenerationRequest(text, max_tokens=n_new, temperature=0, prompt_lookup=n)
        for text, n in zip(texts, guesses, strict=True)
    ]
    return generation.engine_seconds(Copyist(model, answers), requests)


def measure(record: Record, args: argparse.Namespace) -> None:
    """Measure each model and each case, with guesses and without in turn."""
    generation.make_model()
    generation.make_larger_model()
    for path, name in ((generation.MODEL, "125M"), (generation.LARGER_MODEL, "0.5B")):
        with Decoder(path, ModelOptions(n_ctx=1024, n_slots=17, n_threads=args.threads)) as model:
            for case, n_others, theirs, bar in CASES:
                results = generation.rounds(
                    args.rounds,
                    off=lambda model=model, n=n_others: copying_seconds(model, n, 0, 0),
                    on=lambda model=model, n=n_others, theirs=theirs: copying_seconds(
                        model, n, theirs, N_GUESSED
                    ),
                )
                gain = generation.ratio(results, "off", "on")
                record.add(
                    f"Copying with prompt_lookup={N_GUESSED}, {name}", case, gain, "×", at_least=bar
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, default=usable_cores(), help="CPU threads (default: %(default)s)"
    )
    parser.add_argument(
        "--cpu-time", action="store_true", help="on one thread, by the processor's time"
    )
    add_quick(parser)
    args = parser.parse_args()
    if args.quick:
        args.rounds = 1
    if args.cpu_time:
        generation._clock, args.threads = time.process_time, 1
    with Record("copying", args) as record:
        measure(record, args)


if __name__ == "__main__":
    main()
