"""Find the model file that is meant: a path, a hub repository, or the default."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from relevance_gen.checks import check_path
from relevance_gen.errors import ModelLoadError
from relevance_gen.llama.model_files.hub import HubModel, parts

MODEL_VARIABLE = "RELEVANCE_GEN_MODEL"
NO_MODEL = "none"
"""What the server takes in place of a model to serve search alone."""
EMBEDDED_MODEL = Path(__file__).parents[2] / "assets" / "embedded.gguf"
_MAGIC = b"GGUF"
_log = logging.getLogger(__name__)


def is_embedded(
    model: str | os.PathLike[str] | None, environment: Mapping[str, str] = os.environ
) -> bool:
    """Tell whether `resolve` would return the embedded model."""
    return model is None and not environment.get(MODEL_VARIABLE)


def refuse_no_model(model: str) -> None:
    """Raise now the `ModelLoadError` that `resolve`, or loading, would raise soon; load and download nothing.

    It says that a name is neither of a GGUF file that can be read nor of a model on the hub.
    """
    path = Path(model)
    if not path.exists():
        # "models/mine.gguf" has the form of a repository's name, and is meant as a path.
        if HubModel.read(model) is None or (model.count("/") == 1 and path.suffix == ".gguf"):
            raise ModelLoadError(f"{path} does not exist")
        return
    if path.is_dir():
        raise ModelLoadError(f"{path} is a folder: name the GGUF file in it")
    if path.is_file():  # a pipe can be read only once
        check_is_gguf(path)


def check_is_gguf(path: Path) -> None:
    """Refuse what is plainly no model, with a `ModelLoadError` that has a better reason than llama.cpp has."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}") from None
    if magic != _MAGIC:
        raise ModelLoadError(f"{path} is no GGUF file: it begins with {magic!r}, not {_MAGIC!r}")


def files_of(model: str | None) -> list[Path]:
    """Return the parts of a GGUF file, None being the embedded one; of what is no file here there are none."""
    path = EMBEDDED_MODEL if model is None else Path(model)
    return [part for name in parts(path.name) if (part := path.parent / name).is_file()]


def resolve(
    model: str | os.PathLike[str] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    embedded: Path = EMBEDDED_MODEL,
) -> Path:
    """Return the file of `model`, or raise a `ModelLoadError` that says what to do.

    An existing path is that file. ``None`` means what ``RELEVANCE_GEN_MODEL`` names, else the embedded model. Anything
    of the form ``owner/name``, ``owner/name:QUANTIZATION`` or ``owner/name:FILE`` is a repository on the Hugging Face
    hub, of which one file is downloaded (its Q4_K_M, Q8_0 or first, where none is named), once. What is no path at all
    is an `InvalidRequestError`.
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
        _log.info(
            "using the small embedded model; set %s to the path of a GGUF file for another",
            MODEL_VARIABLE,
        )
        return embedded
    path = Path(check_path("model", model))
    if path.exists():
        return path
    if on_the_hub := HubModel.read(str(model)):
        return on_the_hub.fetch()
    raise ModelLoadError(f"{path} does not exist")
