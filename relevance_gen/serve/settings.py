"""The server's settings: one table, which `flags` reads from the command line and the environment.

How a value is written follows from its field's type, or from its ``parse``, and the field's validator checks it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from attrs import field, frozen
from attrs.validators import optional

from relevance_gen.checks import Validator, integer
from relevance_gen.llama.model_file import NO_MODEL
from relevance_gen.llama.options import ModelOptions
from relevance_gen.machine import usable_cpus
from relevance_gen.types import WeightingName

_SIZES = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15}) ?([a-zA-Z]*)", text)
    if not found or found[2].upper() not in _SIZES:
        raise ValueError("a size in bytes, such as 1048576, 64MiB or 1GiB")
    return int(found[1]) * _SIZES[found[2].upper()]


def _hosts(text: str) -> tuple[str, ...]:
    return tuple(name.strip().lower().rstrip(".") for name in text.split(",") if name.strip())


def _paths(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(os.pathsep)))


def _rate(text: str) -> str:
    if text != "off" and not re.fullmatch(r"[1-9][0-9]{0,8}/([1-9][0-9]{0,4})?(second|minute|hour|day)", text):
        raise ValueError("a count per time, such as 100/second, 6000/minute or 500/10minute, or off")
    return text


def _setting(
    group: str,
    default: Any,
    help: str,  # noqa: A002 argparse's own word
    check: Validator | None = None,
    parse: Callable[[str], Any] | None = None,
) -> Any:
    checked = optional(check) if default is None and check else check
    metadata = {"help": help, "group": group, "parse": parse}
    return field(default=default, validator=checked, metadata=metadata, kw_only=True)


_listening, _access, _search, _encoder, _generation, _limits, _log = (
    partial(_setting, group) for group in ("Listening", "Access", "Search", "Encoder", "Generation", "Limits", "Log")
)


@frozen
class Settings:
    """Everything an operator can set. ``--help`` prints this table; docs/operations.md explains it."""

    host: str = _listening("127.0.0.1", "address to listen on; 0.0.0.0 or :: for every interface")
    port: int = _listening(8000, "port to listen on; 0 takes a free one and prints it", integer(0, 65535))
    workers: int = _listening(
        1, "processes that share the port; with more than one, a process of its own holds the model", integer(1, 256)
    )
    reuse_port: bool = _listening(
        False, "listen beside a server that has this too, which then leaves its new connections to this one"
    )
    cors_origins: tuple[str, ...] = _listening((), "web origins whose pages may call, comma-separated; * for all")
    allowed_hosts: tuple[str, ...] = _listening(
        (),
        "names by which this server may be called, comma-separated; * for all; localhost, --host and addresses in "
        "figures always may",
        parse=_hosts,
    )
    idle_timeout_s: float = _listening(75.0, "seconds a connection may stay without a complete request head")
    drain_timeout_s: float = _listening(30.0, "seconds that running work may take to finish after SIGTERM")

    api_keys_file: str | None = _access(
        None, "file of API keys, one a line, plain or as sha256:HEX; re-read when it changes"
    )
    generation_requires_key: bool = _access(False, "ask for a key on /generate, /generate_stream and /stats too")
    rate_limit: str = _access("6000/minute", "requests that one key may make per time, or off", parse=_rate)
    rate_limit_storage: str = _access(
        "memory://", "where requests are counted; redis://HOST:PORT shares the count among processes"
    )

    encoding: str | None = _search(
        None, "tiktoken encoding or rank file that counts tokens; the embedded one if not given"
    )
    weighting: WeightingName = _search(  # noqa: RUF009 a Literal by another name
        "pivoted", "pivoted to answer questions, cosine for the textbook's"
    )
    search_threads: int = _search(
        0, "searches at once in one worker; 0 divides the cores among the workers", integer(0, 1024)
    )
    search_queue: int = _search(
        512, "searches that may wait in one worker; more are refused with 429", integer(0, 1_000_000)
    )
    queue_timeout_s: float = _search(30.0, "seconds a request may wait for a thread, then 503")
    folder: tuple[str, ...] = _search(
        (), "a folder that agents may search at /mcp; may be given more than once", parse=_paths
    )
    index_cache_bytes: int = _search(
        256 << 20, "memory for indexes of chunks already seen, in each worker; 0 keeps none", parse=_size
    )

    encoder: str | None = _encoder(
        None, "GGUF file of an embedding model; without one there are no vectors, and search goes by words alone"
    )
    encoder_threads: int = _encoder(
        0, "CPU threads that encode in one worker; 0 divides the cores among the workers", integer(0, 512)
    )
    encoder_queue: int = _encoder(
        2048, "texts that may wait to be encoded in one worker; more are refused with 429", integer(1, 1_000_000)
    )
    encoder_timeout_s: float = _encoder(60.0, "seconds one request for vectors may take, waiting included, then 503")
    encoder_search_passages: int = _encoder(
        128, "passages that one search may have encoded; one that needs more goes by words alone", integer(1, 1_000_000)
    )
    encoder_search_timeout_s: float = _encoder(
        10.0, "seconds a search may wait for the encoder; then it goes by words alone"
    )
    encoder_index_passages: int = _encoder(
        50_000, "passages of chunks that came twice that are encoded in the background", integer(0, 100_000_000)
    )

    model: str | None = _generation(
        None,
        f"GGUF file, or owner/name[:quantization] of the Hugging Face hub; the embedded model if not given; "
        f"{NO_MODEL} to serve search alone",
    )
    cluster: str | None = _generation(
        None,
        "run the model, and search indexes by their name, on a Ray cluster: auto for the one this machine is in, or "
        "HOST:PORT of its head",
    )
    cluster_runners: int | None = _generation(
        None, "runners in the cluster; one for each GPU, and for each node without, if not given", integer(1)
    )
    model_options: ModelOptions = field(factory=ModelOptions, kw_only=True, metadata={"group": "Generation"})
    max_queue: int | None = _generation(
        None,
        "samples of one key, or of all without, that may wait for a slot, by default 256; more are refused with 429",
        integer(1),
    )
    prefix_cache_bytes: int | None = _generation(
        None, "memory for the computed prompts of recent requests, by default 512MiB; 0 keeps none", parse=_size
    )
    generation_timeout_s: float = _generation(600.0, "seconds one generation may take, waiting included, then 503")

    max_body_bytes: int = _limits(64 << 20, "largest request body, after decompression", parse=_size)
    max_buffered_bytes: int = _limits(
        1 << 30, "memory that the requests of each lane of one worker may take at once; beyond it 503", parse=_size
    )
    max_chunks: int = _limits(200_000, "most chunks in one search", integer(1))
    max_depth: int = _limits(64, "deepest nesting of a request's JSON", integer(1, 500))
    body_timeout_s: float = _limits(120.0, "seconds to receive a request's body, then 408")
    answer_timeout_s: float = _limits(120.0, "seconds a client may take to read its answer, then it is cut")

    log_format: Literal["json", "text"] = _log("json", "form of the log on standard error: json or text")
    log_level: Literal["debug", "info", "warning", "error"] = _log("info", "least severe line logged")
    access_log: bool = _log(True, "log one line for each request")

    @property
    def n_search_threads(self) -> int:
        """Searches at once in one worker."""
        return self.search_threads or max(1, usable_cpus() // self.workers)
