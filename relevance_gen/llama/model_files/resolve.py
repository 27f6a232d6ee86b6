"""Resolve a model name to a file: a path, a hub repository, or the default model."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from relevance_gen.checks import check_path
from relevance_gen.errors import ModelLoadError
from relevance_gen.llama.model_files.hub import HubModel, parts

MODEL_VARIABLE = "RELEVANCE_GEN_MODEL"
NO_MODEL = "none"
"""The model name that disables generation, for search-only servers."""
EMBEDDED_MODEL = Path(__file__).parents[2] / "assets" / "embedded.gguf"
_MAGIC = b"GGUF"
_log = logging.getLogger(__name__)


def is_embedded(model: str | os.PathLike[str] | None) -> bool:
    """Return whether `resolve` would return the embedded model."""
    return model is None and not os.environ.get(MODEL_VARIABLE)


def check_model_exists(model: str) -> None:
    """Check without loading that `model` may be a readable GGUF file or a model on the hub.

    Nothing is downloaded.

    Raises:
        ModelLoadError: it is neither; `resolve` or loading would raise the same error later.
    """
    path = Path(model)
    if not path.exists():
        # "models/mine.gguf" is a path, although it has the form of a repository name.
        is_path = model.count("/") == 1 and path.suffix == ".gguf"
        if is_path or HubModel.read(model) is None:
            raise _missing_file_error(path)
        return
    if path.is_dir():
        raise ModelLoadError(f"{path} is a folder; pass the path of a GGUF file in it")
    if path.is_file():  # a pipe can be read only once
        check_is_gguf(path)


def check_is_gguf(path: Path) -> None:
    """Raise `ModelLoadError` if a file cannot be read or is not in GGUF format.

    llama.cpp also rejects such a file, but this error states the reason more precisely.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ModelLoadError(f"the model file {path} cannot be read: {error.strerror}") from None
    if magic != _MAGIC:
        raise ModelLoadError(f"{path} is not a GGUF file: it starts with {magic!r}, not {_MAGIC!r}")


def files_of(model: str | None) -> list[Path]:
    """Return the paths of a model file and, if the model is split, of all its parts.

    Parts that do not exist are left out, so the list is empty for a model that is not on this
    machine.

    Args:
        model: the path of a GGUF file, or of one part of it; None for the model in this package.
    """
    path = EMBEDDED_MODEL if model is None else Path(model)
    paths = [path.parent / name for name in parts(path.name)]
    return [part for part in paths if part.is_file()]


def resolve(model: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of the file of `model`.

    Args:
        model: the path of an existing file, which is returned unchanged. Or a repository on the
            Hugging Face hub, ``owner/name``, ``owner/name:QUANTIZATION`` or ``owner/name:FILE``, of
            which one file is downloaded once: by default its Q4_K_M, Q8_0 or first file. None means
            the value of ``RELEVANCE_GEN_MODEL``, or the embedded model if that is not set.

    Raises:
        ModelLoadError: the model does not exist or cannot be downloaded, or its name is ``none``,
            which disables generation; the message has a remedy.
        InvalidRequestError: `model` is not a path.
    """
    if model is None:
        model = os.environ.get(MODEL_VARIABLE) or None
    if model == NO_MODEL:
        raise ModelLoadError(
            f"{MODEL_VARIABLE}={NO_MODEL} disables generation (search-only servers); to generate, pass the path of a "
            f"GGUF file, or set {MODEL_VARIABLE} to it, or unset {MODEL_VARIABLE} for the embedded model"
        )
    if model is None:
        if not EMBEDDED_MODEL.exists():
            raise ModelLoadError(
                f"model is required: pass the path of a GGUF file, or set {MODEL_VARIABLE} to it "
                "(this installation has no embedded model)"
            )
        _log.info(
            "using the small embedded model; set %s to the path of a GGUF file to use another model",
            MODEL_VARIABLE,
        )
        return EMBEDDED_MODEL
    path = Path(check_path("model", model))
    if path.exists():
        return path
    if on_the_hub := HubModel.read(str(model)):
        return on_the_hub.fetch()
    raise _missing_file_error(path)


def _missing_file_error(path: Path) -> ModelLoadError:
    return ModelLoadError(
        f"the model file {path} does not exist; pass the path of a GGUF file, or the name of a model on the Hugging "
        "Face hub, such as owner/name"
    )
