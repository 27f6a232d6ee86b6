"""The command: from flags to a running server."""

from __future__ import annotations

import errno
import importlib.util
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from limits.errors import ConfigurationError

from relevance_gen.errors import to_install
from relevance_gen.llama.model_files.resolve import NO_MODEL, files_of, refuse_no_model
from relevance_gen.serve import flags
from relevance_gen.serve.http.access import auth
from relevance_gen.serve.http.access.rate_limit import RateLimit
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.processes import process, supervisor
from relevance_gen.serve.processes.process import ProcessSpec
from relevance_gen.serve.services.agents import check_folders
from relevance_gen.serve.services.generation import load_backend
from relevance_gen.serve.services.indexes.index_registry import IndexRegistry
from relevance_gen.serve.settings import Settings
from relevance_gen.text.token_counting import token_counter


def main(
    argv: Sequence[str], environ: Mapping[str, str], target: supervisor.Target | None = None
) -> int:
    """Serve as flags and variables say, and return the exit status. Each process runs `target`, or `run`."""
    target = target or run
    settings = flags.read(argv, environ)
    try:
        _check(settings)
        if target is run:  # another target loads models of its own, by names that it knows
            _check_models(settings)
    except (OSError, ValueError, ConfigurationError) as error:
        sys.stderr.write(f"{flags.PROGRAM}: {error}\n")
        return 2
    try:
        listeners = supervisor.bind(settings.host, settings.port, settings.workers)
    except OSError as error:
        hint = "; --port 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
        place = f"{settings.host} port {settings.port}"
        sys.stderr.write(f"{flags.PROGRAM}: cannot listen on {place}: {error.strerror}{hint}\n")
        return 1
    host, port = listeners[0].getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    digests = _key_digests(settings, environ, address)
    if settings.cluster is not None:
        model_is = "it runs the model" if settings.models["generate"] else "there is no model"
        rest = "searches that name an index go there, those that bring chunks are done here"
        _say(f"cluster {settings.cluster}: {model_is}; {rest}")
    _say(f"relevance_gen listens on {address}")
    if settings.workers > 1:
        return supervisor.supervise(settings, digests, listeners, target)
    target(ProcessSpec(settings, digests, "alone", listeners[0]))
    return 0


def run(spec: ProcessSpec) -> None:
    """Be one process of the server. It stands here because spawned processes cannot import it from ``__main__``."""
    process.run(spec, load_backend)


def _check(settings: Settings) -> None:
    """Raise now what would otherwise end every process that is started."""
    if settings.api_keys_file is not None:
        try:
            auth.read_digests(Path(settings.api_keys_file))
        except OSError as error:
            raise ValueError(
                f"--api-keys-file: {settings.api_keys_file}: {error.strerror}"
            ) from None
    _check_names(settings)
    check_folders(settings.folder)
    IndexRegistry(settings)
    if settings.encoding is not None:
        token_counter(settings.encoding)
    RateLimit(settings.rate_limit, settings.rate_limit_storage, Metrics.for_one_process())


def _check_names(settings: Settings) -> None:
    """See that every name means one model, and that a cluster has what it can do."""
    for flag, models in (
        ("--model", settings.model),
        ("--encoder", settings.encoder),
        ("--reranker", settings.reranker),
    ):
        names = [model.name for model in models]
        if len(set(names)) < len(names):
            raise ValueError(
                f"{flag}: several are called {max(names, key=names.count)}; give them as NAME=FILE"
            )
        if len(names) > 1 and NO_MODEL in names:
            raise ValueError(f"{flag} {NO_MODEL} must stand alone")
    if settings.cluster is not None and (
        len(settings.model) > 1 or settings.model_idle_s or settings.model_bytes
    ):
        raise ValueError(
            "--cluster keeps one --model loaded: leave out others, --model-idle-s and --model-bytes"
        )


def _check_models(settings: Settings) -> None:
    for model in sum(settings.models.values(), ()):
        if model.file is not None:
            refuse_no_model(model.file)
        n_bytes = sum(path.stat().st_size for path in files_of(model.file))
        if settings.model_bytes is not None and not 0 < n_bytes <= settings.model_bytes:
            has = (
                f"takes {n_bytes}" if n_bytes else "is no file yet: download it, and name its file"
            )
            raise ValueError(
                f"--model-bytes {settings.model_bytes}: {model.file or model.name} {has}"
            )
    if settings.cluster is not None and importlib.util.find_spec("ray") is None:
        raise ValueError(f"--cluster needs Ray: {to_install('cluster')}")


def _key_digests(settings: Settings, environ: Mapping[str, str], address: str) -> tuple[bytes, ...]:
    """Return the digests of the configured keys; where there are none, make a key and print it, this once."""
    keys = [
        key.strip() for key in environ.get("RELEVANCE_GEN_API_KEYS", "").split(",") if key.strip()
    ]
    if not keys and settings.api_keys_file is None:
        keys = [f"rg_{secrets.token_urlsafe(32)}"]
        _say(
            f"{auth.HEADER}: {keys[0]}   (made for this run; set RELEVANCE_GEN_API_KEYS to choose your own)"
        )
        _say(f"the page, which takes the key from its address: {address}/#key={keys[0]}")
    return tuple(auth.digest(key) for key in keys)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 meant for the terminal, not the log
