"""The server's settings, which `flags` reads from the command line and the environment.

A value is parsed according to its field's type, or by its ``parse``, and checked by its validator.
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
    match = re.fullmatch(r"([0-9]{1,15}) ?([a-zA-Z]*)", text)
    if match is None or match[2].upper() not in _SIZES:
        raise ValueError("a size in bytes, such as 1048576, 64MiB or 1GiB")
    return int(match[1]) * _SIZES[match[2].upper()]


ModelTask: TypeAlias = Literal["generate", "embed", "rerank"]
"""The purpose of a model; model names are unique within a purpose."""

DEFAULT_NAME = "relevance_gen"
"""The name of the model in this package; clients can also select the first model by this name."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.:@+/-]{0,127}"


@frozen
class NamedModel:
    """A model and its name for clients.

    Attributes:
        name: the name.
        file: the path of a GGUF file, or the name of a model on the hub; None for the model that is
            part of this package.
    """

    name: str
    file: str | None


def named_models(text: str) -> tuple[NamedModel, ...]:
    """Parse models: pairs ``NAME=FILE``, separated by commas; the first can be a file without name.

    The default name of a file is the file name without ``.gguf``; the default name of a model on
    the hub is ``owner/name``.

    Raises:
        ValueError: the text is not of this form.

    >>> [model.name for model in named_models("small=/models/q.gguf,big=owner/name")]
    ['small', 'big']
    >>> named_models("q.gguf")[0].name
    'q'
    """
    return tuple(map(_named_model, re.split(rf",(?={_NAME}=)", text)))


def _named_model(text: str) -> NamedModel:
    match = re.fullmatch(rf"(?:({_NAME})=)?(.+)", text, re.DOTALL)
    if match is None:
        raise ValueError("a GGUF file, owner/name of the hub, or NAME=FILE")
    file = match[2]
    default_name = Path(file).stem if file.endswith(".gguf") else file
    return NamedModel(match[1] or default_name, file)


def _hosts(text: str) -> tuple[str, ...]:
    return tuple(name.strip().lower().rstrip(".") for name in text.split(",") if name.strip())


def _paths(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(os.pathsep)))


def _pairs(text: str, value: str, allowed: str) -> tuple[tuple[str, str], ...]:
    """Parse pairs ``NAME=VALUE``, separated by commas; a value can contain commas.

    Args:
        text: the pairs.
        value: a regular expression that the values must match.
        allowed: a description of the allowed pairs, for errors.

    Raises:
        ValueError: a pair is not allowed; the message is `allowed`, followed by the characters that
            NAME can have.
    """
    pairs = []
    for pair in re.split(r",(?=[\w.-]+=)", text):
        match = re.fullmatch(rf"([\w.-]{{1,256}})=({value})", pair)
        if match is None:
            names = "with letters, digits, dots, dashes and underscores in NAME"
            raise ValueError(f"{allowed}, {names}")
        pairs.append((match[1], match[2]))
    return tuple(pairs)


def _device_numbers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,3}(,[0-9]{1,3})*", text):
        raise ValueError("numbers of GPUs, separated by commas, such as 0,1")
    return tuple(map(int, text.split(",")))


def _rate(text: str) -> str:
    rate = r"[1-9][0-9]{0,8}/([1-9][0-9]{0,4})?(second|minute|hour|day)"
    if text != "off" and not re.fullmatch(rate, text):
        raise ValueError(
            "a count per time, such as 100/second, 6000/minute or 500/10minute, or off"
        )
    return text


def _setting(
    group: str,
    default: Any,
    help: str,  # noqa: A002 - the name in argparse
    validator: Validator | None = None,
    parse: Callable[[str], Any] | None = None,
) -> Any:
    if default is None and validator is not None:
        validator = optional(validator)
    metadata = {"help": help, "group": group, "parse": parse}
    return field(default=default, validator=validator, metadata=metadata, kw_only=True)


_listening = partial(_setting, "Listening")
_access = partial(_setting, "Access")
_search = partial(_setting, "Search")
_encoder = partial(_setting, "Encoder")
_reranker = partial(_setting, "Reranker")
_generation = partial(_setting, "Generation")
_limits = partial(_setting, "Limits")
_log = partial(_setting, "Log")

_THREADS = (
    "CPU threads of the {} in one worker; 0: cores divided by workers, "
    "reduced automatically if fewer threads are faster"
)


@frozen
class Settings:
    """The settings of the server; ``--help`` prints them, and docs/operations.md explains them."""

    host: str = _listening("127.0.0.1", "address to listen on; 0.0.0.0 or :: for every interface")
    port: int = _listening(
        8000, "port to listen on; 0 selects a free port and prints it", integer(0, 65535)
    )
    workers: int = _listening(
        1,
        "processes that share the port; with more than 1, a separate process holds the model",
        integer(1, 256),
    )
    cors_origins: tuple[str, ...] = _listening(
        (), "web origins allowed to call (CORS), comma-separated; * allows all"
    )
    allowed_hosts: tuple[str, ...] = _listening(
        (),
        "allowed Host header values, comma-separated; * allows all; localhost, --host and IP "
        "addresses are always allowed",
        parse=_hosts,
    )
    idle_timeout_s: float = _listening(
        75.0, "maximum seconds until a connection sends the complete headers of a request"
    )
    drain_timeout_s: float = _listening(
        30.0, "maximum seconds to finish running requests after SIGTERM"
    )

    api_keys_file: str | None = _access(
        None, "file of API keys, one per line, plain or as sha256:HEX; reloaded when it changes"
    )
    generation_requires_key: bool = _access(
        False, "require a key also for /generate, /generate_stream and /stats"
    )
    rate_limit: str = _access(
        "6000/minute", "maximum requests of one key per time, or off", parse=_rate
    )
    rate_limit_storage: str = _access(
        "memory://",
        "storage of the request counts; redis://HOST:PORT shares them among processes",
    )

    encoding: str | None = _search(
        None, "tiktoken encoding or rank file for token counts (default: the embedded encoding)"
    )
    weighting: WeightingName = _search(  # noqa: RUF009 - an alias of a Literal
        "pivoted", "scoring scheme: pivoted, or cosine (textbook TF-IDF)"
    )
    search_threads: int = _search(
        0, "concurrent searches in one worker; 0: cores divided by workers", integer(0, 1024)
    )
    search_queue: int = _search(
        512,
        "maximum queued searches in one worker; further searches are refused with 429",
        integer(0, 1_000_000),
    )
    queue_timeout_s: float = _search(
        30.0, "maximum seconds that a request waits for a thread; then 503"
    )
    folder: tuple[str, ...] = _search(
        (), "folder that agents can search at /mcp (repeatable)", parse=_paths
    )
    index: tuple[tuple[str, str], ...] = _search(
        (),
        "NAME=LOCATION: serve an index under a name (repeatable). The location is a file written "
        "by ChunkIndex.save, a folder of files, or the folder or address of a sharded index",
        parse=partial(_pairs, value=".+", allowed="NAME=FILE, NAME=FOLDER or NAME=ADDRESS"),
    )
    index_key: tuple[tuple[str, str], ...] = _search(
        (),
        "NAME=KEY-ID: restrict an index to this key (repeatable)",
        parse=partial(
            _pairs,
            value="[0-9a-f]{12}",
            allowed="NAME=KEY-ID, an id of 12 hexadecimal digits as in the log",
        ),
    )
    index_cache_bytes: int = _search(
        256 << 20,
        "memory for cached indexes of chunks in each worker; 0 disables the cache",
        parse=_size,
    )
    shard_cache_bytes: int = _search(
        16 << 30,
        "disk space for cached shards from object storage; 0 loads them into memory per worker",
        parse=_size,
    )

    encoder: tuple[NamedModel, ...] = _encoder(
        (),
        "GGUF file of an embedding model; without it, search uses lexical scores only "
        "(repeatable as NAME=FILE; searches use the first)",
        parse=named_models,
    )
    encoder_threads: int = _encoder(0, _THREADS.format("encoder"), integer(0, 512))
    encoder_queue: int = _encoder(
        2048,
        "maximum texts queued for the encoder in one worker; further texts are refused with 429",
        integer(1, 1_000_000),
    )
    encoder_timeout_s: float = _encoder(
        60.0, "maximum seconds of a request for vectors, including its time in the queue; then 503"
    )
    encoder_search_passages: int = _encoder(
        128,
        "maximum passages to encode for a search; one that needs more uses lexical scores only",
        integer(1, 1_000_000),
    )
    encoder_search_timeout_s: float = _encoder(
        10.0,
        "maximum seconds that a search waits for the encoder; then it uses lexical scores only",
    )
    encoder_index_passages: int = _encoder(
        50_000,
        "maximum passages to encode in the background for chunks that were sent twice",
        integer(0, 100_000_000),
    )

    reranker: tuple[NamedModel, ...] = _reranker(
        (),
        "GGUF file of a reranker for rerank requests, and for searches that request it "
        "(repeatable as NAME=FILE; searches use the first)",
        parse=named_models,
    )
    reranker_threads: int = _reranker(0, _THREADS.format("reranker"), integer(0, 512))
    reranker_texts: int = _reranker(
        100, "maximum number of top results to rerank for one search", integer(1, 10_000)
    )
    reranker_timeout_s: float = _reranker(
        30.0, "maximum seconds that a search waits for the reranker; then results are not reranked"
    )

    model: tuple[NamedModel, ...] = _generation(
        (),
        "GGUF file, or owner/name[:quantization] of the Hugging Face hub (default: the embedded "
        f"model); {NO_MODEL}: search only (repeatable as NAME=FILE; the first is the default)",
        parse=named_models,
    )
    model_idle_s: float | None = _generation(
        None,
        "unload a model or an encoder after this many seconds without a request, until the next",
    )
    model_bytes: int | None = _generation(
        None,
        "maximum total size of the files of loaded models and encoders in one process; the least "
        "recently used model is unloaded first",
        integer(1),
        _size,
    )
    cluster: str | None = _generation(
        None,
        "run the model, and search named indexes, on a Ray cluster: auto (the cluster of this "
        "machine), or HOST:PORT of its head node",
    )
    cluster_runners: int | None = _generation(
        None,
        "runners in the cluster (default: one for each GPU, and for each node without GPU)",
        integer(1),
    )
    devices: tuple[int, ...] = _generation(
        (),
        "numbers of GPUs, such as 0,1: each holds a copy of the model and serves requests of one "
        "queue (default: one copy on all GPUs); not with --cluster, whose runners have a GPU each",
        parse=_device_numbers,
    )
    model_options: ModelOptions = field(
        factory=ModelOptions, kw_only=True, metadata={"group": "Generation"}
    )
    max_queue: int | None = _generation(
        None,
        "maximum queued samples of one key, or of all anonymous clients (default: 256); "
        "further samples are refused with 429",
        integer(1),
    )
    prefix_cache_bytes: int | None = _generation(
        None,
        "memory for the KV cache of recent prompts (default: 512MiB); 0 disables the cache",
        parse=_size,
    )
    generation_timeout_s: float = _generation(
        600.0, "maximum seconds of a generation, including its time in the queue; then 503"
    )
    model_load_timeout_s: float = _generation(
        300.0,
        "maximum seconds to load a model; requests that wait longer, or arrive later, get a 503",
    )

    max_body_bytes: int = _limits(
        64 << 20, "maximum size of a request body, after decompression", parse=_size
    )
    max_buffered_bytes: int = _limits(
        1 << 30,
        "maximum memory of the requests in each resource pool of one worker; beyond it 503",
        parse=_size,
    )
    max_chunks: int = _limits(200_000, "maximum number of chunks in one search", integer(1))
    max_query_bytes: int = _limits(
        64 << 10,
        "maximum size of a query in UTF-8; longer queries are refused with 413",
        parse=_size,
    )
    max_depth: int = _limits(64, "maximum nesting depth of JSON in a request", integer(1, 500))
    body_timeout_s: float = _limits(
        120.0, "maximum seconds to receive the body of a request; then 408"
    )
    write_timeout_s: float = _limits(
        120.0,
        "maximum seconds that a client takes to read a response; then the connection is aborted",
    )

    log_format: Literal["json", "text"] = _log(
        "json", "format of the log on standard error: json or text"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _log(
        "info", "minimum severity of logged lines"
    )
    access_log: bool = _log(True, "log one line for each request")

    @property
    def models(self) -> Mapping[ModelTask, tuple[NamedModel, ...]]:
        """The models of each purpose, the default model first.

        If ``model`` is not set, the model in this package generates. A purpose without a model has
        an empty tuple.
        """
        models = self.model or (NamedModel(DEFAULT_NAME, None),)
        return {
            "generate": () if models[0].file == NO_MODEL else models,
            "embed": self.encoder,
            "rerank": self.reranker,
        }

    @property
    def n_search_threads(self) -> int:
        """The number of concurrent searches in one worker."""
        return self.search_threads or max(1, usable_cpus() // self.workers)

    def n_threads_of(self, n_threads: int) -> int | None:
        """Return the number of threads of an encoder or a reranker in one worker.

        None means that the fastest number is found by measurement. `n_threads` is the value of
        ``encoder_threads`` or ``reranker_threads``; 0 selects the number automatically.
        """
        if n_threads:
            return n_threads
        return None if self.workers == 1 else max(1, usable_cores() // self.workers)
