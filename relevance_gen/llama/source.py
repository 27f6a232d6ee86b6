"""Find the model file that is meant: a path, a hub repository, or the default."""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from relevance_gen.errors import ModelLoadError

MODEL_VARIABLE = "RELEVANCE_GEN_MODEL"
NO_MODEL = "none"
"""What the server takes in place of a model to serve search alone."""
EMBEDDED_MODEL = Path(__file__).parents[1] / "assets" / "embedded.gguf"
_HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>[\w./-]+\.gguf))?")
_log = logging.getLogger(__name__)


def is_embedded(model: str | os.PathLike[str] | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether `resolve` would return the embedded model."""
    return model is None and not environment.get(MODEL_VARIABLE)


def resolve(
    model: str | os.PathLike[str] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    embedded: Path = EMBEDDED_MODEL,
) -> Path:
    """Return the file of `model`.

    An existing path is that file. ``None`` means what ``RELEVANCE_GEN_MODEL`` names, else the embedded model. Anything
    of the form ``owner/name`` or ``owner/name/file.gguf`` is a repository on the Hugging Face hub, of which one file is
    downloaded (its Q4_K_M, Q8_0 or first, where none is named) and kept in the hub's own cache.

    Raises:
        ModelLoadError: there is no such model; the message says what to do.
    """
    if model is None:
        model = environment.get(MODEL_VARIABLE) or None
    if model == NO_MODEL:
        raise ModelLoadError(
            f"the model {NO_MODEL!r} is for servers of search alone: to generate, pass the path of a GGUF file, or set "
            f"{MODEL_VARIABLE} to it, or unset {MODEL_VARIABLE} for the embedded model"
        )
    if model is None:
        if not embedded.exists():
            raise ModelLoadError(
                f"no model is chosen: pass the path of a GGUF file, or set {MODEL_VARIABLE} to it "
                "(this installation has no embedded model)"
            )
        _log.info("using the small embedded model; set %s to the path of a GGUF file for another", MODEL_VARIABLE)
        return embedded
    path = Path(model)
    if path.exists():
        return path
    if name := _HUB_NAME.fullmatch(str(model)):
        return _download(name["repository"], name["file"])
    raise ModelLoadError(f"{path} does not exist")


def _download(repository: str, file: str | None) -> Path:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise ModelLoadError(
            f"{repository} does not exist as a file; if you mean the hub repository of that name, "
            "pip install huggingface_hub"
        ) from None
    try:
        if file is None:
            file = choose_file(hub.list_repo_files(repository))
        return Path(hub.hf_hub_download(repository, file))
    except ModelLoadError:
        raise
    except Exception as error:
        raise ModelLoadError(f"{repository} cannot be downloaded: {error}") from error


def choose_file(names: list[str]) -> str:
    """Return the GGUF file of a repository to prefer: Q4_K_M, then Q8_0, then the first.

    Raises:
        ModelLoadError: there is none.
    """
    files = sorted(name for name in names if name.endswith(".gguf"))
    if not files:
        raise ModelLoadError("the repository holds no GGUF file")
    for quantization in ("q4_k_m", "q8_0"):
        for name in files:
            if quantization in name.lower():
                return name
    return files[0]
