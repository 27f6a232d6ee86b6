"""Measure generation over HTTP against other llama.cpp servers: ``python -m bench.peers``.

Each server has the same model and threads. Requests to OpenAI's completions generate 64 tokens for
1, 4 and 16 prompts at once, and the first token of a long prompt, new and repeated. The peers are
llama-cpp-python's packaged server, and if they are named, its example's server (``--example
examples/server/server.py`` of its source distribution) and llama.cpp's own (``--llama-server
FILE``, built with the flags of `docs/generating.md`).
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics

from attrs import frozen

from bench import generation
from bench.recording import Record, add_quick
from bench.serve_load import KEY, at_once, request, serving, timed
from relevance_gen.machine import usable_cores

N_STREAMS = (1, 4, 16)
N_TOKENS = 64
N_WORDS, N_WORDS_LONG = 40, 200
N_CTX = 1024
"""Tokens of each stream's context."""
OURS = "relevance_gen"
AS_OTHERS = ["--flash-attention", "true", "--n-batch", "512"]
"""The default of llama-server, optional here: concurrent requests may change the text of a seed."""
_PATH = "/v1/completions"
_EXAMPLE = """
import runpy, sys, tempfile
with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
    config.write(sys.argv[2])
    config.flush()
    script, sys.argv = sys.argv[1], ["server", "-C", config.name]
    runpy.run_path(script, run_name="__main__")
"""
"""Starts the example's server, which reads a file in place of flags."""


@frozen
class Server:
    """A server to measure.

    Attributes:
        name: its name in the record.
        command: the command that starts it; ``{port}`` is replaced by its port.
        ready: a path that answers with 200 once it is ready.
        n_rounds: how often it is measured.
    """

    name: str
    command: list[str]
    ready: str = "/health"
    n_rounds: int = 3

    @contextmanager
    def running(self) -> Iterator[int]:
        """Run it, and yield its port."""
        with serving(
            *self.command, ready="200", path=self.ready, RELEVANCE_GEN_API_KEYS=KEY
        ) as port:
            request(port, "POST", _PATH, body("warm", 8))
            yield port


def servers(args: argparse.Namespace) -> list[Server]:
    """Return the servers that can be measured here, ours first."""
    model, threads, n_ctx = str(args.model), str(args.threads), N_CTX * max(N_STREAMS)
    ours = [
        sys.executable,
        "-m",
        "relevance_gen.serve",
        "--port",
        "{port}",
        "--model",
        model,
        "--n-threads",
        threads,
    ]
    ours += [
        "--n-ctx",
        str(N_CTX),
        "--n-slots",
        str(max(N_STREAMS)),
        "--rate-limit",
        "off",
        "--access-log",
        "off",
    ]
    packaged = [
        sys.executable,
        "-m",
        "llama_cpp.server",
        "--model",
        model,
        "--port",
        "{port}",
        "--n_ctx",
        str(N_CTX),
    ]
    packaged += ["--n_threads", threads, "--n_threads_batch", threads]
    found = [Server(OURS, ours), Server(f"{OURS}, {' '.join(AS_OTHERS)}", [*ours, *AS_OTHERS])]
    found.append(Server("llama-cpp-python's server", packaged, "/v1/models", 1))
    if args.example is not None:
        options = {
            "path": model,
            "alias": "m",
            "n_ctx": n_ctx,
            "n_seq_max": max(N_STREAMS),
            "n_batch": 512,
        }
        options |= {
            "n_ubatch": 512,
            "threads": args.threads,
            "threads_batch": args.threads,
            "kv_unified": True,
        }
        config = json.dumps({"server": {"host": "127.0.0.1", "port": "{port}"}, "model": options})
        command = [sys.executable, "-c", _EXAMPLE, str(args.example), config]
        found.append(Server("llama-cpp-python's example server", command, "/v1/models"))
    if args.llama_server is not None:
        own = [
            str(args.llama_server),
            "-m",
            model,
            "--port",
            "{port}",
            "-c",
            str(n_ctx),
            "-np",
            str(max(N_STREAMS)),
        ]
        found.append(Server("llama-server", [*own, "-t", threads, "-tb", threads]))
    return found


def body(prompt: str, max_tokens: int, **more: object) -> bytes:
    return json.dumps(
        {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.8, **more}
    ).encode()


def prompts(n_prompts: int, n_words: int, seed: int) -> list[str]:
    """Return distinct English prompts."""
    chance, words = random.Random(seed), " ".join(topics.values()).split()
    return [" ".join(chance.choices(words, k=n_words)) for _ in range(n_prompts)]


def first_token_s(port: int, prompt: str) -> float:
    """Return the seconds until the first piece of a stream is here."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    started_s = time.perf_counter()
    try:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        connection.request("POST", _PATH, body(prompt, 8, stream=True), headers)
        response = connection.getresponse()
        while b'"text"' not in (line := response.readline()):
            if response.status != 200 or not line:
                raise RuntimeError(
                    f"no piece of text, status {response.status}: {line.decode(errors='replace')}"
                )
        return time.perf_counter() - started_s
    finally:
        connection.close()


def measure(record: Record, server: Server, args: argparse.Namespace) -> None:
    """Record what one server does."""
    at_once_group = f"{N_TOKENS} tokens of prompts at once, {args.model.name}"
    first_group = f"First token of a prompt of {N_WORDS_LONG} words, {args.model.name}"
    n_rounds = 1 if args.quick else server.n_rounds
    with server.running() as port:
        for n_streams in N_STREAMS:
            taken_s = []
            for number in range(n_rounds):
                asked = [
                    body(prompt, N_TOKENS)
                    for prompt in prompts(n_streams, N_WORDS, 100 * n_streams + number)
                ]
                taken_s.append(timed(lambda asked=asked: at_once(port, _PATH, asked)))
            record.add(
                at_once_group,
                server.name,
                statistics.median(taken_s),
                f"{n_streams} at once, s",
                places=2,
            )
        times_s = [
            [first_token_s(port, prompt) for _ in range(2)]
            for prompt in prompts(n_rounds, N_WORDS_LONG, 7)
        ]
    for name, column in zip(("fresh", "once more"), zip(*times_s, strict=True), strict=True):
        record.add(
            first_group, server.name, statistics.median(column) * 1e3, f"{name}, ms", places=0
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--threads", type=int, default=usable_cores(), help="CPU threads that decode"
    )
    parser.add_argument(
        "--model", type=Path, default=generation.MODEL, help="GGUF file; made if not there"
    )
    parser.add_argument(
        "--example", type=Path, metavar="FILE", help="examples/server/server.py of llama-cpp-python"
    )
    parser.add_argument(
        "--llama-server", type=Path, metavar="FILE", help="llama.cpp's server, built"
    )
    add_quick(parser)
    args = parser.parse_args()
    generation.make_model()
    with Record("peers", args) as record:
        for server in servers(args):
            try:
                measure(record, server, args)
            except RuntimeError as error:
                print(f"  {server.name}: not measured ({error})")


if __name__ == "__main__":
    main()
