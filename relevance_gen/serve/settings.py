"""The server's settings: one table, which `flags` reads from the command line and the environment.

How a value is written follows from its field's type, or from its ``parse``, and the field's validator checks it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from attrs import field, frozen
from attrs.validators import optional

from relevance_gen.checks import Validator, integer
from relevance_gen.llama.model_files.resolve import NO_MODEL
from relevance_gen.llama.options import ModelOptions
from relevance_gen.machine import usable_cores, usable_cpus
from relevance_gen.types import WeightingName

_SIZES = {
    "": 1,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15}) ?([a-zA-Z]*)", text)
    if not found or found[2].upper() not in _SIZES:
        raise ValueError("a size in bytes, such as 1048576, 64MiB or 1GiB")
    return int(found[1]) * _SIZES[found[2].upper()]


Task: TypeAlias = Literal["generate", "embed", "rerank"]
"""What a model is for; each kind has names of its own."""

DEFAULT_NAME = "relevance_gen"
"""What the embedded model is called, and any where neither the operator nor the client has said a name."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.:@+/-]{0,127}"


@frozen
class NamedModel:
    """A model as the operator names it: a GGUF file, or a model of the hub; None for the embedded one."""

    name: str
    file: str | None


def named_models(text: str) -> tuple[NamedModel, ...]:
    """Read models, comma-separated: ``NAME=FILE``, or of one alone a file, whose name without its ending is the name.

    >>> [model.name for model in named_models("small=/models/q.gguf,big=owner/name")], named_models("q.gguf")[0].name
    (['small', 'big'], 'q')
    """
    return tuple(map(_named, re.split(rf",(?={_NAME}=)", text)))


def _named(text: str) -> NamedModel:
    found = re.fullmatch(rf"(?:({_NAME})=)?(.+)", text, re.DOTALL)
    if not found:
        raise ValueError("a GGUF file, owner/name of the hub, or NAME=FILE")
    file = found[2]
    return NamedModel(found[1] or (Path(file).stem if file.endswith(".gguf") else file), file)


def _hosts(text: str) -> tuple[str, ...]:
    return tuple(name.strip().lower().rstrip(".") for name in text.split(",") if name.strip())


def _paths(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(os.pathsep)))


def _pairs(text: str, value: str, what: str) -> tuple[tuple[str, str], ...]:
    """Read names with what each stands for, separated by commas; of a pair the value may have commas, too."""
    pairs = re.split(r",(?=[\w.-]+=)", text)
    if not all(re.fullmatch(rf"[\w.-]{{1,256}}={value}", pair) for pair in pairs):
        raise ValueError(f"{what}, a name being letters, digits, dots, dashes and underscores")
    return tuple((name, said) for name, _, said in (pair.partition("=") for pair in pairs))


def _rate(text: str) -> str:
    if text != "off" and not re.fullmatch(
        r"[1-9][0-9]{0,8}/([1-9][0-9]{0,4})?(second|minute|hour|day)", text
    ):
        raise ValueError(
            "a count per time, such as 100/second, 6000/minute or 500/10minute, or off"
        )
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


_listening, _access, _search, _encoder, _reranker, _generation, _limits, _log = (
    partial(_setting, group)
    for group in (
        "Listening",
        "Access",
        "Search",
        "Encoder",
        "Reranker",
        "Generation",
        "Limits",
        "Log",
    )
)


def _threads(setting: Callable[..., Any], do: str) -> Any:
    rule = "0 divides the cores among the workers, and takes fewer where one worker is faster so"
    return setting(0, f"CPU threads that {do} in one worker; {rule}", integer(0, 512))


@frozen
class Settings:
    """Everything an operator can set. ``--help`` prints this table; docs/operations.md explains it."""

    host: str = _listening("127.0.0.1", "address to listen on; 0.0.0.0 or :: for every interface")
    port: int = _listening(
        8000, "port to listen on; 0 takes a free one and prints it", integer(0, 65535)
    )
    workers: int = _listening(
        1,
        "processes that share the port; with more than one, a process of its own holds the model",
        integer(1, 256),
    )
    cors_origins: tuple[str, ...] = _listening(
        (), "web origins whose pages may call, comma-separated; * for all"
    )
    allowed_hosts: tuple[str, ...] = _listening(
        (),
        "names by which this server may be called, comma-separated; * for all; localhost, --host and addresses in "
        "figures always may",
        parse=_hosts,
    )
    idle_timeout_s: float = _listening(
        75.0, "seconds a connection may stay without a complete request head"
    )
    drain_timeout_s: float = _listening(
        30.0, "seconds that running work may take to finish after SIGTERM"
    )

    api_keys_file: str | None = _access(
        None, "file of API keys, one a line, plain or as sha256:HEX; re-read when it changes"
    )
    generation_requires_key: bool = _access(
        False, "ask for a key on /generate, /generate_stream and /stats too"
    )
    rate_limit: str = _access(
        "6000/minute", "requests that one key may make per time, or off", parse=_rate
    )
    rate_limit_storage: str = _access(
        "memory://",
        "where requests are counted; redis://HOST:PORT shares the count among processes",
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
        512,
        "searches that may wait in one worker; more are refused with 429",
        integer(0, 1_000_000),
    )
    queue_timeout_s: float = _search(30.0, "seconds a request may wait for a thread, then 503")
    folder: tuple[str, ...] = _search(
        (), "a folder that agents may search at /mcp; may be given more than once", parse=_paths
    )
    index: tuple[tuple[str, str], ...] = _search(
        (),
        "NAME=PLACE, an index that clients may ask by its name: a file that ChunkIndex.save wrote, a folder of files, "
        "or the folder or address where an index of a cluster was saved; may be given more than once",
        parse=partial(_pairs, value=".+", what="NAME=FILE, NAME=FOLDER or NAME=ADDRESS"),
    )
    index_key: tuple[tuple[str, str], ...] = _search(
        (),
        "NAME=KEY-ID, a key that may ask the index, which then no others may; may be given more than once",
        parse=partial(
            _pairs,
            value="[0-9a-f]{12}",
            what="NAME=KEY-ID, an id of 12 hexadecimal digits as in the log",
        ),
    )
    index_cache_bytes: int = _search(
        256 << 20,
        "memory for indexes of chunks already seen, in each worker; 0 keeps none",
        parse=_size,
    )
    shard_cache_bytes: int = _search(
        16 << 30,
        "room on disk for shards of indexes in object storage; 0 reads them into each worker",
        parse=_size,
    )

    encoder: tuple[NamedModel, ...] = _encoder(
        (),
        "GGUF file of an embedding model; without one there are no vectors, and search goes by words alone; may be "
        "given more than once, as NAME=FILE: searches have the first",
        parse=named_models,
    )
    encoder_threads: int = _threads(_encoder, "encode")
    encoder_queue: int = _encoder(
        2048,
        "texts that may wait to be encoded in one worker; more are refused with 429",
        integer(1, 1_000_000),
    )
    encoder_timeout_s: float = _encoder(
        60.0, "seconds one request for vectors may take, waiting included, then 503"
    )
    encoder_search_passages: int = _encoder(
        128,
        "passages that one search may have encoded; one that needs more goes by words alone",
        integer(1, 1_000_000),
    )
    encoder_search_timeout_s: float = _encoder(
        10.0, "seconds a search may wait for the encoder; then it goes by words alone"
    )
    encoder_index_passages: int = _encoder(
        50_000,
        "passages of chunks that came twice that are encoded in the background",
        integer(0, 100_000_000),
    )

    reranker: tuple[NamedModel, ...] = _reranker(
        (),
        "GGUF file of a reranker, which reads documents to rerank, and the best of searches that ask for it; may be "
        "given more than once, as NAME=FILE: searches have the first",
        parse=named_models,
    )
    reranker_threads: int = _threads(_reranker, "read")
    reranker_texts: int = _reranker(
        100, "texts that it may read for one search: the best", integer(1, 10_000)
    )
    reranker_timeout_s: float = _reranker(
        30.0, "seconds a search may wait for the reranker; then it goes without"
    )

    model: tuple[NamedModel, ...] = _generation(
        (),
        f"GGUF file, or owner/name[:quantization] of the Hugging Face hub; the embedded model if not given; "
        f"{NO_MODEL} to serve search alone; may be given more than once, as NAME=FILE: the first is the default",
        parse=named_models,
    )
    model_idle_s: float | None = _generation(
        None,
        "seconds after which a model, or an encoder, that nobody asks is unloaded, until somebody does",
    )
    model_bytes: int | None = _generation(
        None,
        "most bytes of the files of all models and encoders that are loaded at once in one process; the one that was "
        "not asked for longest makes room",
        integer(1),
        _size,
    )
    cluster: str | None = _generation(
        None,
        "run the model, and search indexes by their name, on a Ray cluster: auto for the one this machine is in, or "
        "HOST:PORT of its head",
    )
    cluster_runners: int | None = _generation(
        None,
        "runners in the cluster; one for each GPU, and for each node without, if not given",
        integer(1),
    )
    model_options: ModelOptions = field(
        factory=ModelOptions, kw_only=True, metadata={"group": "Generation"}
    )
    max_queue: int | None = _generation(
        None,
        "samples of one key, or of all without, that may wait for a slot, by default 256; more are refused with 429",
        integer(1),
    )
    prefix_cache_bytes: int | None = _generation(
        None,
        "memory for the computed prompts of recent requests, by default 512MiB; 0 keeps none",
        parse=_size,
    )
    generation_timeout_s: float = _generation(
        600.0, "seconds one generation may take, waiting included, then 503"
    )
    model_load_timeout_s: float = _generation(
        300.0, "seconds a model may take to load; whoever waits longer, or comes then, gets a 503"
    )

    max_body_bytes: int = _limits(
        64 << 20, "largest request body, after decompression", parse=_size
    )
    max_buffered_bytes: int = _limits(
        1 << 30,
        "memory that the requests of each lane of one worker may take at once; beyond it 503",
        parse=_size,
    )
    max_chunks: int = _limits(200_000, "most chunks in one search", integer(1))
    max_depth: int = _limits(64, "deepest nesting of a request's JSON", integer(1, 500))
    body_timeout_s: float = _limits(120.0, "seconds to receive a request's body, then 408")
    write_timeout_s: float = _limits(
        120.0, "seconds a client may take to read its answer, then it is cut"
    )

    log_format: Literal["json", "text"] = _log(
        "json", "form of the log on standard error: json or text"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _log(
        "info", "least severe line logged"
    )
    access_log: bool = _log(True, "log one line for each request")

    @property
    def models(self) -> Mapping[Task, tuple[NamedModel, ...]]:
        """The models of each kind, the default first: the embedded one generates where none is named."""
        generating = self.model or (NamedModel(DEFAULT_NAME, None),)
        return {
            "generate": () if generating[0].file == NO_MODEL else generating,
            "embed": self.encoder,
            "rerank": self.reranker,
        }

    @property
    def n_search_threads(self) -> int:
        """Searches at once in one worker."""
        return self.search_threads or max(1, usable_cpus() // self.workers)

    def n_threads_of(self, named: int) -> int | None:
        """Return with how many threads an encoder or a reranker computes; None for as many as are fastest."""
        return named or (None if self.workers == 1 else max(1, usable_cores() // self.workers))
