"""Measure generation on a busy machine: ``python -m bench.busy``; about four minutes.

Other programs: each round measures without and with one busy loop per processor; a ratio is the
median of the rounds' ratios. A fair share of the processors is one half, which doubles the time;
the limit for a larger model is three times that. With a busy loop on one processor, generation
should be only slightly slower than with one thread on an idle machine. To measure another OpenMP
setting, set its variable: ``GOMP_SPINCOUNT=300000`` is the default. Several sequences at once are
compared with sequences in turn. Large request: the time to the first token of eight short requests
that arrive after a large request.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from bench.generation import MODEL, engine_seconds, make_model
from bench.recording import Record, add_quick
from relevance_gen import GenerationRequest, Runner
from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.model_files.resolve import EMBEDDED_MODEL
from relevance_gen.llama.options import ModelOptions
from relevance_gen.machine import usable_cpus

N_SHORT = 8


@contextlib.contextmanager
def busy_loops(n: int) -> Iterator[None]:
    """Run `n` programs that only use a processor."""
    with contextlib.ExitStack() as stack:
        for _ in range(n):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(loop.kill)
        time.sleep(0.2)
        yield


def beside_others(model: Decoder, request: GenerationRequest, n_rounds: int) -> tuple[float, float]:
    """Return the median seconds on an idle machine, and the median ratio with busy loops."""
    quiet, ratios = [], []
    engine_seconds(model, [request])
    for _ in range(n_rounds):
        quiet.append(engine_seconds(model, [request]))
        with busy_loops(usable_cpus()):
            ratios.append(engine_seconds(model, [request]) / quiet[-1])
    return statistics.median(quiet), statistics.median(ratios)


def beside_one(n_threads: int | None, n_rounds: int) -> list[float]:
    """Return the rate relative to one thread, idle and with one busy loop, as medians of rounds."""
    request = GenerationRequest("ONCE", max_tokens=64)
    options = [ModelOptions(n_ctx=256, n_slots=1, n_threads=number) for number in (1, n_threads)]
    with Decoder(MODEL, options[0]) as single, Decoder(MODEL, options[1]) as model:
        shares: list[tuple[float, float]] = []
        for _ in range(n_rounds + 1):
            alone, quiet = engine_seconds(single, [request]), engine_seconds(model, [request])
            with busy_loops(1):
                shares.append((alone / quiet, alone / engine_seconds(model, [request])))
    return [
        statistics.median(column) for column in zip(*shares[1:], strict=True)
    ]  # the first round warms up


def together(n_threads: int | None, n_sequences: int, n_rounds: int) -> float:
    """Return the median ratio of the time of sequences in turn to their time together."""
    requests = [GenerationRequest(f"{number} ONCE", max_tokens=48) for number in range(n_sequences)]
    ratios = []
    with Decoder(MODEL, ModelOptions(n_ctx=256, n_slots=n_sequences, n_threads=n_threads)) as model:
        for _ in range(n_rounds + 1):
            apart = sum(engine_seconds(model, [request]) for request in requests)
            ratios.append(apart / engine_seconds(model, requests))
    return statistics.median(ratios[1:])


def behind_a_large_request() -> list[float]:
    """Return the seconds to the first token of eight short requests, after 256 samples on 16 slots."""
    first: dict[int, float] = {}
    done = threading.Event()
    with Runner(EMBEDDED_MODEL, n_slots=16, n_ctx=256, prefix_cache_bytes=0) as runner:
        large = runner.submit(
            GenerationRequest("Once upon a time", max_tokens=100, num_samples=256)
        )
        while not runner.counters().generated_tokens:
            time.sleep(0.001)
        started = time.perf_counter()

        def note(number: int) -> None:
            first.setdefault(number, time.perf_counter() - started)
            if len(first) == N_SHORT:
                done.set()

        for number in range(N_SHORT):
            request = GenerationRequest(f"A small dog number {number}", max_tokens=10)
            runner.submit(request, on_text=lambda *_, number=number: note(number))
        done.wait()
        large.cancel()
    return sorted(first.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: as a runner chooses)")
    add_quick(parser)
    args = parser.parse_args()
    make_model()
    cases = (
        (
            "30 tokens of the embedded model",
            EMBEDDED_MODEL,
            GenerationRequest("Once", max_tokens=30),
            20,
        ),
        ("8 samples of 125M", MODEL, GenerationRequest("ONCE", max_tokens=16, num_samples=8), 6),
    )
    with Record("busy", args) as record:
        group = f"Beside {usable_cpus()} busy loops"
        for name, path, request, bar in cases:
            with Decoder(path, ModelOptions(n_ctx=512, n_slots=8, n_threads=args.threads)) as model:
                seconds, ratio = beside_others(model, request, 1 if args.quick else args.rounds)
            record.add(group, name, seconds, "s without", places=3)
            record.add(group, name, ratio, "× beside", at_most=bar)
        n_rounds = 1 if args.quick else args.rounds
        quiet, beside = beside_one(args.threads, n_rounds)
        group = f"125M on {usable_cpus()} processors, of the rate of one thread"
        record.add(group, "quiet", quiet, "×", at_least=1)
        record.add(group, "beside one busy loop", beside, "×", at_least=0.8)
        for n_sequences in (2, 3, 4, 6, 16):
            ratio = together(args.threads, n_sequences, n_rounds)
            record.add(
                "125M, one after another / together",
                f"{n_sequences} sequences",
                ratio,
                "×",
                at_least=1,
            )
        first = behind_a_large_request()
        group = f"First token of {N_SHORT} short requests behind 256 × 100 tokens"
        record.add(group, "of the first", first[0], "s")
        record.add(group, "of the last", first[-1], "s", at_most=2)


if __name__ == "__main__":
    main()
