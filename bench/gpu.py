"""Measure generation on a GPU: ``python -m bench.gpu``, or ``make bench-gpu``, which also builds.

It takes a few minutes and needs no network: the models have random weights, and are created on
first use in bench/models, which can be copied to another machine to save a minute. ``--cpu`` runs
smaller measurements on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bench.generation import (
    LARGER_MODEL,
    MODEL,
    engine_seconds,
    make_larger_model,
    make_model,
    prompt_text,
)
from bench.recording import Record, add_quick
from relevance_gen.generation.sampling.sampler import sample
from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.devices import gpus
from relevance_gen.llama.runtime.library import lib
from relevance_gen.types import GenerationRequest

N_LONG, N_SHORT = 2048, 32


def median_ms(work: Callable[[], object], n: int) -> float:
    """Return the median time of `n` calls, after a warm-up call."""
    work()
    times = []
    for _ in range(n):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def step(model: Decoder, n: int, n_wanted: int) -> np.ndarray:
    """Compute one token of `n` sequences, and return the logits of `n_wanted`."""
    model._batch.fill([300] * n, [N_SHORT] * n, range(n))
    logits = model._compute(np.arange(n) >= n - n_wanted)
    for slot in range(n):
        model.rewind(slot, N_SHORT)
    return logits


def measure_steps(record: Record, model: Decoder, name: str, n_times: int) -> None:
    """Measure one step at several widths: with one row of logits, with all of them, and drawing from these."""
    for slot in range(model.n_slots):
        model.prefill([slot], [model.tokenize(prompt_text(N_SHORT, slot), 0)], [0])
    group = f"One step, {name}"
    for n in [n for n in (1, 16, 64, 128) if n <= model.n_slots]:
        settings, uniforms, logits = (
            [GenerationRequest("")] * n,
            np.full(n, 0.5),
            step(model, n, n).copy(),
        )
        one = median_ms(partial(step, model, n, 1), n_times)
        every = median_ms(partial(step, model, n, n), n_times)
        drawing = median_ms(partial(sample, logits, settings, uniforms), n_times)
        record.add(group, f"{n} sequences, logits of one", one, "ms")
        record.add(group, f"{n} sequences, logits of all", every, "ms")
        record.add(group, f"{n} sequences, drawing", drawing, "ms")
        record.add(group, f"{n} sequences", n / (every + drawing) * 1000, "tokens/s", places=0)
    for slot in range(model.n_slots):
        model.rewind(slot, 0)


def measure_requests(record: Record, model: Decoder, name: str, n_rounds: int) -> None:
    """Measure many short prompts at once, a long prompt, and samples of a long prompt."""
    n, long = model.n_slots, min(N_LONG, model.n_ctx - 64)
    group = f"Requests, {name}"
    short = [
        GenerationRequest(prompt_text(N_SHORT, seed), max_tokens=1) for seed in range(min(64, n))
    ]
    cases = {
        f"{len(short)} prompts of {N_SHORT} tokens, all first tokens": short,
        f"a prompt of {long} tokens, first token": [
            GenerationRequest(prompt_text(long), max_tokens=1)
        ],
        f"16 samples of 32 tokens after {long}": [
            GenerationRequest(prompt_text(long), max_tokens=32, num_samples=16)
        ],
    }
    for what, requests in cases.items():
        engine_seconds(model, requests)
        seconds = statistics.median(engine_seconds(model, requests) for _ in range(n_rounds))
        record.add(group, what, seconds * 1000, "ms", places=1)
    prompt = model.tokenize(prompt_text(long), 0)
    for start in range(0, long, model.n_batch):
        model.prefill([0], [prompt[start : start + model.n_batch]], [start])
    for what, on_device in (("through the host", False), ("on the device", True)):
        model.copies_on_device = on_device
        copied = median_ms(lambda: copy_and_decode(model, long), 3)
        record.add(group, f"copying {long} tokens to 15 slots {what}, and a step", copied, "ms")
    for slot in range(16):
        model.rewind(slot, 0)


def copy_and_decode(model: Decoder, n_tokens: int) -> None:
    """Copy slot 0 to fifteen slots and compute a token for all, because devices copy lazily."""
    for slot in range(1, 16):
        model.copy(0, slot)
    model.decode(range(16), [300] * 16, [n_tokens] * 16)
    model.rewind(0, n_tokens)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="without a GPU, to see that it works")
    parser.add_argument("--model", type=Path, help="a GGUF file to measure too")
    add_quick(parser)
    args = parser.parse_args()
    devices = gpus()
    if not args.cpu and not (lib.llama_supports_gpu_offload() and devices):
        print(
            "llama.cpp as built here sees no GPU: see docs/generating.md on building it, or add --cpu"
        )
        return 2
    print(
        ", ".join(f"{device.name}, {device.free_bytes >> 20:,} MiB free" for device in devices)
        or "no GPU"
    )
    is_small = args.cpu or args.quick
    make_model()
    models = {"125M": MODEL}
    if not is_small:
        make_larger_model()
        models["0.5B"] = LARGER_MODEL
    if args.model:
        models[args.model.stem] = args.model
    n_slots, n_ctx, n_times = (16, 512, 3) if is_small else (128, N_LONG + 64, 20)
    with Record("gpu", args, is_whole=not is_small) as record:
        for name, path in models.items():
            options = ModelOptions(
                n_ctx=n_ctx, n_slots=n_slots, n_gpu_layers=0 if args.cpu else None
            )
            with Decoder(path, options) as model:
                measure_steps(record, model, name, n_times)
                measure_requests(record, model, name, 1 if is_small else 3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
