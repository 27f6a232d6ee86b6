"""Measure generation against its bars: ``python -m bench.generation [PART…]``; about five minutes on 2 quiet cores.

Models are made on first use, in bench/models. What is compared takes turns, round after round; a
ratio is the median of the rounds' ratios. llama.cpp's own server takes part if ``--server`` or
``LLAMA_SERVER`` names its binary.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import secrets
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.recording import Record, add_quick
from relevance_gen.generation.engine.engine import Engine
from relevance_gen.generation.engine.prefix_cache import PrefixCache
from relevance_gen.generation.queue.events import Finished
from relevance_gen.generation.queue.request import QueuedRequest
from relevance_gen.generation.sampling.sampler import log_probabilities, sample
from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.model_files.resolve import EMBEDDED_MODEL
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.library import system_info
from relevance_gen.machine import usable_cores
from relevance_gen.types import GenerationRequest
from small_models.make import write_random

if TYPE_CHECKING:
    from llama_cpp import Llama

MODEL = Path(__file__).parent / "models" / "125m.gguf"
LARGER_MODEL = MODEL.with_name("500m.gguf")
N_PROMPT, N_NEW = 256, 64
PORT = 18_080
MODES = {"default": "off", "flash attention": "on"}
"""The engine's modes, as llama.cpp's server calls them."""
Seconds = Callable[[], float]


_clock: Seconds = time.perf_counter


# ── What is measured ──────────────────────────────────────────────────────────────────────────────


def prompt_text(n_tokens: int, seed: int = 0) -> str:
    """Return a text of exactly `n_tokens` tokens: upper-case letters are never merged."""
    return "".join(np.random.default_rng(seed).choice(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), n_tokens))


def make_model() -> None:
    """Make the model of about 125M random weights, if it is not there."""
    if not MODEL.exists():
        MODEL.parent.mkdir(exist_ok=True)
        write_random(
            MODEL, n_vocab=32_000, n_embd=768, n_ff=2048, n_layer=12, n_head=12, n_ctx=4096
        )


def make_larger_model() -> None:
    """Make the model of Qwen2.5-0.5B's width, depth and vocabulary, of random weights, if it is not there."""
    if not LARGER_MODEL.exists():
        LARGER_MODEL.parent.mkdir(exist_ok=True)
        write_random(
            LARGER_MODEL, n_vocab=151_936, n_embd=896, n_ff=4864, n_layer=24, n_head=14, n_ctx=4096
        )


def timed(work: Callable[[], object]) -> float:
    started = _clock()
    work()
    return _clock() - started


def engine_seconds(
    model: Decoder, requests: list[GenerationRequest], cache: PrefixCache | None = None
) -> float:
    """Serve `requests`, all at once, with the engine."""
    engine = Engine(model, PrefixCache(0) if cache is None else cache)
    responses = []
    for number, request in enumerate(requests):
        engine.add(QueuedRequest(number, request, secrets.randbits(128), time.time()))

    def work() -> None:
        while not engine.is_idle:
            responses.extend(event for event in engine.step() if isinstance(event, Finished))

    seconds = timed(work)
    assert len(responses) == len(requests)
    return seconds


def raw_seconds(model: Decoder, n_samples: int) -> float:
    """Call llama.cpp in the shapes of the engine's batches, and do nothing else."""
    prompt = model.tokenize(prompt_text(N_PROMPT), 0)

    def work() -> None:
        for start in range(0, N_PROMPT, model.n_batch):
            model.prefill([0], [prompt[start : start + model.n_batch]], [start])
        state = model.save(0) if n_samples > 1 else None
        for slot in range(1, n_samples):
            model.restore(slot, state)
        for step in range(N_NEW - 1):
            model.decode(range(n_samples), [300] * n_samples, [N_PROMPT + step] * n_samples)

    seconds = timed(work)
    for slot in range(n_samples):
        model.rewind(slot, 0)
    return seconds


def completions_seconds(llama: Llama, n_samples: int) -> float:
    """Generate completions in turn with llama-cpp-python, which keeps the prompt between them."""
    llama.reset()

    no_end = {1: -100.0}  # it would stop at the model's own end token

    def work() -> None:
        for _ in range(n_samples):
            answer = llama.create_completion(
                prompt_text(N_PROMPT),
                max_tokens=N_NEW,
                temperature=1.0,
                top_k=50,
                logit_bias=no_end,
            )
            assert answer["usage"]["completion_tokens"] == N_NEW

    return timed(work)


def samples(n: int) -> list[GenerationRequest]:
    return [GenerationRequest(prompt_text(N_PROMPT), max_tokens=N_NEW, num_samples=n)]


def unique(n: int) -> list[GenerationRequest]:
    return [GenerationRequest(prompt_text(N_PROMPT, seed), max_tokens=N_NEW) for seed in range(n)]


class NullModel:
    """A model that returns constant logits immediately, so that only the engine's time remains."""

    n_ctx, n_slots, n_batch, prefill_multiple, can_rewind = 4096, 16, 128, 1, False

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self._logits = np.random.default_rng(0).normal(0, 3, (16, n_vocab)).astype(np.float32)
        self._batch = [np.empty(16, np.int32) for _ in range(3)]

    def decode(self, *columns: list[int]) -> np.ndarray:
        """Fill a batch, as a real model must, and answer."""
        for array, column in zip(self._batch, columns, strict=True):
            array[: len(column)] = column
        return self._logits[: len(columns[0])]

    def prefill(self, *_: object) -> np.ndarray:
        """Answer at once."""
        return self._logits[:1]

    def tokenize(self, *_: object) -> np.ndarray:
        """Make one token of any text."""
        return np.zeros(1, np.int32)

    def piece(self, _: int) -> bytes:
        """Print the same word for every token."""
        return b" word"

    def _nothing(self, *_: object) -> None:
        pass

    rewind = restore = copy = interrupt = _nothing

    def save(self, _: int) -> np.ndarray:
        """Have nothing to save."""
        return np.zeros(1, np.uint8)


def own_work_us(n_vocab: int) -> float:
    """Return the engine's own work for one token at 16 sequences, in microseconds."""
    n_new = 200
    request = GenerationRequest("a", max_tokens=n_new, num_samples=16)
    return (
        statistics.median(engine_seconds(NullModel(n_vocab), [request]) for _ in range(5))
        / (16 * n_new)
        * 1e6
    )


def measure_sampling(record: Record) -> None:
    """Report the processor time for a row of 152,000 logits out of 16 rows, with few and with many likely tokens."""
    n_rows, n_vocab = 16, 152_000
    chance = np.random.default_rng(0)
    peaked = chance.normal(0, 1, (n_rows, n_vocab)).astype(np.float32)
    peaked[:, :50] += np.linspace(18, 8, 50, dtype=np.float32)
    flat = chance.normal(0, 3, (n_rows, n_vocab)).astype(np.float32)
    uniforms = chance.random(n_rows)

    def row_us(work: Callable[[], object]) -> float:
        times = []
        for _ in range(15):
            started = time.thread_time()
            work()
            times.append(time.thread_time() - started)
        return statistics.median(times) / n_rows * 1e6

    drawn = {
        "top_k 50": (GenerationRequest(""), 150),
        "top_k 0": (GenerationRequest("", top_k=0), 700),
    }
    drawn["top_k 0, top_p .95"] = (GenerationRequest("", top_k=0, top_p=0.95), 1000)
    for kind, logits in (("peaked", peaked), ("flat", flat)):
        for name, (settings, bar) in drawn.items():
            measured = row_us(
                lambda logits=logits, settings=settings: sample(
                    logits, [settings] * n_rows, uniforms
                )
            )
            record.add(
                "Sampling a row of 152,000",
                f"{kind}, {name}",
                measured,
                "µs",
                at_most=bar,
                places=0,
            )
        measured = row_us(lambda logits=logits: log_probabilities(logits, np.arange(n_rows)))
        record.add(
            "Sampling a row of 152,000",
            f"{kind}, log probability",
            measured,
            "µs",
            at_most=700,
            places=0,
        )


# ── llama.cpp's own server ────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def llama_server(binary: str, n_threads: int, flash_attention: str) -> Iterator[None]:
    """Run llama.cpp's server on the model, with the settings of ours."""
    command = [
        binary,
        "-m",
        MODEL,
        "-c",
        str(16 * 512),
        "-np",
        "16",
        "-fa",
        flash_attention,
        "-t",
        str(n_threads),
    ]
    command += ["--port", str(PORT), "--no-webui", "--no-kv-unified", "--cache-ram", "0"]
    with subprocess.Popen(  # noqa: S603 - the caller's own binary
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            for _ in range(300):
                time.sleep(0.1)
                with contextlib.suppress(OSError):
                    if ask_server("GET", "/health")[0] == http.HTTPStatus.OK:
                        break
            yield
        finally:
            process.terminate()


def ask_server(method: str, path: str, body: object = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)
    connection.request(
        method,
        path,
        None if body is None else json.dumps(body),
        {"Content-Type": "application/json"},
    )
    response = connection.getresponse()
    return response.status, response.read()


def server_seconds(n_requests: int) -> float:
    """Send different prompts to llama.cpp's server, all at once."""

    def ask(seed: int) -> None:
        body = {
            "prompt": prompt_text(N_PROMPT, seed),
            "n_predict": N_NEW,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        status, answer = ask_server(
            "POST", "/completion", body | {"temperature": 1.0, "top_k": 50, "top_p": 1, "min_p": 0}
        )
        assert status == http.HTTPStatus.OK
        assert json.loads(answer)["tokens_predicted"] == N_NEW

    with ThreadPoolExecutor(n_requests) as clients:
        return timed(lambda: list(clients.map(ask, range(n_requests))))


# ── The report ────────────────────────────────────────────────────────────────────────────────────


def rounds(n: int, **contestants: Seconds) -> dict[str, list[float]]:
    """Let every contestant run in turn, `n` times."""
    results: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(n):
        for name, run in contestants.items():
            results[name].append(run())
    return results


def ratio(results: dict[str, list[float]], above: str, below: str) -> float:
    return statistics.median(a / b for a, b in zip(results[above], results[below], strict=True))


def compare(record: Record, model: Decoder, mode: str, args: argparse.Namespace) -> None:
    """Measure one mode of the engine: against raw llama.cpp, completions in turn, and llama.cpp's own server."""
    engine_seconds(model, samples(1))  # the first computation of a model is slower
    results = rounds(
        args.rounds,
        **{f"raw {n}": (lambda n=n: raw_seconds(model, n)) for n in (1, 8, 16)},
        **{f"engine {n}": (lambda n=n: engine_seconds(model, samples(n))) for n in (1, 8, 16)},
    )
    group = f"Samples of one prompt, {N_PROMPT} + {N_NEW} tokens, {mode}"
    for n in (1, 8, 16):
        for who in ("engine", "raw"):
            taken = statistics.median(results[f"{who} {n}"])
            record.add(group, f"{who}, {n}", taken, "s")
            record.add(group, f"{who}, {n}", n * N_NEW / taken, "tokens a second", places=0)
    group = f"Ratios, {mode}"
    for n in (1, 8, 16):
        record.add(
            group,
            f"{n}: engine / raw llama_decode",
            ratio(results, f"engine {n}", f"raw {n}"),
            "×",
            at_most=1.08,
        )
    for n, bar in ((8, 3.3), (16, 5.0)):
        record.add(
            group, f"{n} samples / 1", ratio(results, f"engine {n}", "engine 1"), "×", at_most=bar
        )
        record.add(
            group, f"{n} samples / 1, raw llama.cpp", ratio(results, f"raw {n}", "raw 1"), "×"
        )
    compare_with_completions(record, model, group, args)
    compare_with_server(record, model, mode, args)


def compare_with_completions(
    record: Record, model: Decoder, group: str, args: argparse.Namespace
) -> None:
    """Measure many samples against completions in turn."""
    from llama_cpp import (
        Llama,
    )  # not at the top: relevance_gen must load llama.cpp first, to set how its threads wait

    llama = Llama(
        str(MODEL), n_ctx=512, n_threads=args.threads, n_threads_batch=args.threads, verbose=False
    )
    for n, bar in ((8, 2.0), (16, 2.5))[: 1 if args.quick else 2]:
        results = rounds(
            args.rounds,
            theirs=lambda n=n: completions_seconds(llama, n),
            ours=lambda n=n: engine_seconds(model, samples(n)),
        )
        what = f"{n} × Llama.create_completion / {n} samples"
        record.add(group, what, ratio(results, "theirs", "ours"), "×", at_least=bar)
    llama.close()


def compare_with_server(
    record: Record, model: Decoder, mode: str, args: argparse.Namespace
) -> None:
    """Measure 16 different requests against llama.cpp's own server."""
    if not args.server:
        print("16 different requests / llama.cpp's server: skipped, its binary is not named")
        return
    with llama_server(args.server, args.threads, MODES[mode]):
        results = rounds(
            args.rounds,
            theirs=lambda: server_seconds(16),
            ours=lambda: engine_seconds(model, unique(16)),
        )
    what = "16 different requests / llama.cpp's own server"
    record.add(f"Ratios, {mode}", what, ratio(results, "ours", "theirs"), "×", at_most=1.15)


def measure_prefix_cache(record: Record, args: argparse.Namespace) -> None:
    """Measure how much sooner the first token of a repeated prompt of 2,000 tokens comes."""
    make_model()
    with Decoder(MODEL, ModelOptions(n_ctx=2048, n_slots=1, n_threads=args.threads)) as model:

        def twice(seed: int) -> float:
            cache = PrefixCache(1 << 30)
            request = GenerationRequest(prompt_text(2000, seed), max_tokens=1)
            first, second = (engine_seconds(model, [request], cache) for _ in range(2))
            return first / second

        value = statistics.median(twice(seed) for seed in range(args.rounds))
    record.add(
        "Prefix cache", "first token of 2,000: first time / repeated", value, "×", at_least=8
    )


class OneByOne:
    """A model that takes one prompt at a time, and is the same otherwise."""

    prefill_multiple = 1

    def __init__(self, model: Decoder) -> None:
        self._model = model

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)


def measure_first_tokens(record: Record, args: argparse.Namespace) -> None:
    """Measure how soon 16 short prompts that arrive at once have all their first tokens."""
    make_model()
    for path, name in ((MODEL, "125M"), (EMBEDDED_MODEL, "embedded")):
        with Decoder(path, ModelOptions(n_ctx=512, n_slots=16, n_threads=args.threads)) as model:
            for n_tokens in (8, 32):
                requests = [
                    GenerationRequest(prompt_text(n_tokens, seed), max_tokens=1)
                    for seed in range(16)
                ]
                results = rounds(
                    5 * args.rounds,
                    apart=lambda model=model, requests=requests: engine_seconds(
                        OneByOne(model), requests
                    ),
                    together=lambda model=model, requests=requests: engine_seconds(model, requests),
                )
                group = f"All first tokens of 16 prompts at once, {name}"
                for how, seconds in results.items():
                    record.add(
                        group, f"{n_tokens} letters, {how}", statistics.median(seconds) * 1000, "ms"
                    )
                gain = ratio(results, "apart", "together")
                record.add(group, f"{n_tokens} letters, apart / together", gain, "×", at_least=1)


def measure_own_work(record: Record) -> None:
    """Measure the engine's time per token for three vocabulary sizes."""
    for n_vocab, bar in ((512, 30), (32_000, 120), (152_000, 180)):
        measured = own_work_us(n_vocab)
        record.add(
            "Engine's own work for a token at 16 sequences",
            f"V = {n_vocab:,}",
            measured,
            "µs",
            at_most=bar,
            places=0,
        )


def measure_modes(record: Record, args: argparse.Namespace) -> None:
    """Measure each mode of the engine."""
    make_model()
    for mode in list(MODES)[: 1 if args.quick else None]:
        options = ModelOptions(
            n_ctx=512, n_slots=16, n_threads=args.threads, flash_attention=MODES[mode] == "on"
        )
        with Decoder(MODEL, options) as model:
            compare(record, model, mode, args)


PARTS: dict[str, Callable[[Record, argparse.Namespace], None]] = {
    "sampling": lambda record, _: measure_sampling(record),
    "own-work": lambda record, _: measure_own_work(record),
    "modes": measure_modes,
    "prefix-cache": measure_prefix_cache,
    "first-tokens": measure_first_tokens,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=2, help="rounds (default: %(default)s)")
    parser.add_argument(
        "--server", default=os.environ.get("LLAMA_SERVER"), help="llama.cpp's llama-server"
    )
    parser.add_argument(
        "--threads", type=int, default=usable_cores(), help="CPU threads (default: %(default)s)"
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="measure on one thread by the processor's time, which a busy machine disturbs less; without the server",
    )
    add_quick(parser)
    args = parser.parse_args()
    if args.quick:
        args.rounds = 1
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if args.cpu_time:
        global _clock
        _clock, args.threads, args.server = time.process_time, 1, None
    print(system_info())
    print(
        f"llama-cpp-python {version('llama-cpp-python')}, {args.threads} threads, {args.rounds} rounds"
    )
    with Record("generation", args, is_whole=not args.parts) as record:
        for name in args.parts or PARTS:
            PARTS[name](record, args)


if __name__ == "__main__":
    main()
