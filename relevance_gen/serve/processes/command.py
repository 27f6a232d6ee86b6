"""The command ``serve``: from flags to a running server."""

from __future__ import annotations

import errno
import importlib.util
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from limits.errors import ConfigurationError

from relevance_gen.errors import to_install
from relevance_gen.llama.model_files.resolve import NO_MODEL, check_model_exists, files_of
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
    """Run the server with the settings of flags and variables; return the exit status at its end.

    The status is 2 if a setting is invalid, and 1 if the server cannot listen on its port.

    Args:
        argv: the flags.
        environ: the environment variables.
        target: the main function of each process; None for `run`.
    """
    target = target or run
    settings = flags.read(argv, environ)
    try:
        _check(settings)
        if target is run:  # other targets have models of their own
            _check_models(settings)
    except (OSError, ValueError, ConfigurationError) as error:
        sys.stderr.write(f"{flags.PROGRAM}: {error}\n")
        return 2
    try:
        listeners = supervisor.bind(settings.host, settings.port, settings.workers)
    except OSError as error:
        hint = "; --port 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
        address = f"{settings.host} port {settings.port}"
        sys.stderr.write(f"{flags.PROGRAM}: cannot listen on {address}: {error.strerror}{hint}\n")
        return 1
    host, port = listeners[0].getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    digests = _key_digests(settings, environ, url)
    if settings.cluster is not None:
        model = "it runs the model" if settings.models["generate"] else "there is no model"
        searches = (
            "searches of named indexes run in the cluster, searches of sent chunks in this server"
        )
        _print(f"cluster {settings.cluster}: {model}; {searches}")
    _print(f"relevance_gen listens on {url}")
    if settings.workers > 1:
        return supervisor.supervise(settings, digests, listeners, target)
    target(ProcessSpec(settings, digests, "alone", listeners[0]))
    return 0


def run(spec: ProcessSpec) -> None:
    """Run one process of the server.

    This function is not in ``__main__``, because spawned processes cannot import it from there.
    """
    process.run(spec, load_backend)


def _check(settings: Settings) -> None:
    """Check the settings before processes are started, because each process would fail later.

    Raises:
        ValueError, ConfigurationError, OSError: a setting is invalid.
    """
    if settings.api_keys_file is not None:
        try:
            auth.read_digests(Path(settings.api_keys_file))
        except OSError as error:
            raise ValueError(
                f"--api-keys-file: {settings.api_keys_file}: {error.strerror}"
            ) from None
    # Each name refers to one model, and a cluster has one model.
    by_flag = {
        "--model": settings.model,
        "--encoder": settings.encoder,
        "--reranker": settings.reranker,
    }
    for flag, models in by_flag.items():
        names = [model.name for model in models]
        if len(set(names)) < len(names):
            duplicate = max(names, key=names.count)
            rule = "must give each model a different name"
            raise ValueError(f"{flag} {rule}, got {duplicate} more than once; use NAME=FILE")
        if len(names) > 1 and NO_MODEL in names:
            raise ValueError(f"{flag} {NO_MODEL} must stand alone")
    unloads_models = settings.model_idle_s or settings.model_bytes
    if settings.cluster is not None and (len(settings.model) > 1 or unloads_models):
        raise ValueError(
            "--cluster keeps one --model loaded: leave out others, --model-idle-s and --model-bytes"
        )
    if settings.cluster is not None and settings.devices:
        raise ValueError("--devices cannot be used with --cluster: leave one of them out")
    check_folders(settings.folder)
    IndexRegistry(settings)
    if settings.encoding is not None:
        token_counter(settings.encoding)
    RateLimit(settings.rate_limit, settings.rate_limit_storage, Metrics.for_one_process())


def _check_models(settings: Settings) -> None:
    for models in settings.models.values():
        for model in models:
            if model.file is not None:
                check_model_exists(model.file)
            n_bytes = sum(path.stat().st_size for path in files_of(model.file))
            if settings.model_bytes is None or 0 < n_bytes <= settings.model_bytes:
                continue
            source = model.file or model.name
            if not n_bytes:
                rule = "must be a local file if --model-bytes is set"
                raise ValueError(f"{source} {rule}; download it, and pass the path of the file")
            rule = f"must be at least {n_bytes}, the size of {source}"
            raise ValueError(f"--model-bytes {rule}, got {settings.model_bytes}")
    if settings.cluster is not None and importlib.util.find_spec("ray") is None:
        raise ValueError(f"--cluster needs Ray: {to_install('cluster')}")


def _key_digests(
    settings: Settings,
    environ: Mapping[str, str],
    url: str,
) -> tuple[bytes, ...]:
    """Return the digests of the API keys in the variable ``RELEVANCE_GEN_API_KEYS``.

    If the variable has no keys and the settings name no key file, generate a key, print it, and
    return its digest. Keys in a key file are not read here.

    Args:
        settings: the settings, which can name a key file.
        environ: the environment variables.
        url: the address of the server, which is printed with a generated key.
    """
    configured = environ.get("RELEVANCE_GEN_API_KEYS", "").split(",")
    keys = [key.strip() for key in configured if key.strip()]
    if not keys and settings.api_keys_file is None:
        key = f"rg_{secrets.token_urlsafe(32)}"
        keys = [key]
        hint = "made for this run; set RELEVANCE_GEN_API_KEYS to choose your own"
        _print(f"{auth.HEADER}: {key}   ({hint})")
        _print(f"the page, which takes the key from its address: {url}/#key={key}")
    return tuple(auth.digest(key) for key in keys)


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 for the terminal, not for the log
