"""Download models from the Hugging Face hub; this is the only module that uses huggingface_hub."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from relevance_gen.errors import ModelLoadError, to_install

_HUB_NAME = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<path>[\w./-]+\.gguf)|:(?P<selection>[\w./-]+))?",
    re.ASCII | re.IGNORECASE,
)
_PART_SUFFIX = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_DEFAULT_QUANTIZATIONS = ("Q4_K_M", "Q8_0")
_MAX_SHOWN_CHARACTERS = 300
_TIMEOUT_S = 5.0
"""Seconds for connecting to the hub and listing the files of a repository."""
_log = logging.getLogger(__name__)


@frozen
class HubModel:
    """A file in a repository on the hub, ``owner/name``.

    Attributes:
        repository: ``owner/name``.
        selection: the name of the file, with or without ``.gguf``, or a quantization in its name;
            None for the default.
    """

    repository: str
    selection: str | None

    @classmethod
    def read(cls, text: str) -> HubModel | None:
        """Parse ``owner/name``, ``owner/name:FILE-OR-QUANTIZATION`` or ``owner/name/FILE``.

        The result is None for anything else.
        """
        name = _HUB_NAME.fullmatch(text)
        if name is None:
            return None
        return cls(name["repository"], name["path"] or name["selection"])

    def fetch(self) -> Path:
        """Return the file from the hub's own cache, or download it.

        A terminal shows a progress bar.

        Raises:
            ModelLoadError: the file does not exist or cannot be downloaded; the message has a
                remedy.
        """
        try:
            hub = importlib.import_module("huggingface_hub")
        except ImportError:
            raise ModelLoadError(
                f"the model {self.repository} is not a local file; to download it from the Hugging Face hub, "
                f"{to_install('hub')}"
            ) from None
        # Contact the hub only if the cache does not hold the file that would be downloaded.
        file = self._cached(hub, self.selection or _DEFAULT_QUANTIZATIONS[0])
        if file is None:
            file = self._download_or_cached(hub)
        _log.info("using %s of %s", file.name, self.repository)
        return file

    def _download_or_cached(self, hub: Any) -> Path:
        """Download the file, and return its path.

        If the hub cannot be read, return a complete file in the cache that `selection` allows. If
        `selection` is None, this can be another quantization than the default.

        Raises:
            ModelLoadError: the repository does not have the file, or the file can neither be
                downloaded nor found in the cache.
        """
        try:
            return self._download(hub)
        except ModelLoadError as error:
            raise ModelLoadError(f"{self.repository}: {error}") from None
        except Exception as error:  # of the hub's client, its HTTP client, or the file system
            file = self._cached(hub, self.selection)
            if file is not None:
                return file
            message = " ".join(str(error).split())
            reason = message[:_MAX_SHOWN_CHARACTERS] or type(error).__name__
            raise ModelLoadError(
                f"the model {self.repository} is not a local file and cannot be downloaded from the Hugging Face "
                f"hub: {reason}; check the name and the network, or pass the path of a GGUF file (a model that was "
                "downloaded before needs no network)"
            ) from error

    def _download(self, hub: Any) -> Path:
        # Not list_repo_files, which retries for half a minute without a network.
        siblings = hub.HfApi().model_info(self.repository, timeout=_TIMEOUT_S).siblings
        file = choose_file([sibling.rfilename for sibling in siblings or ()], self.selection)
        _log.info("downloading %s of %s from the Hugging Face hub", file, self.repository)
        paths = [Path(hub.hf_hub_download(self.repository, part)) for part in parts(file)]
        return paths[0]

    def _cached(self, hub: Any, selection: str | None) -> Path | None:
        """Return the path of the file in the hub's cache that `choose_file` selects.

        The result is None if the cache does not hold the file, or not all of its parts.

        Args:
            hub: the module ``huggingface_hub``.
            selection: as for `choose_file`; the attribute `selection` is not used.
        """
        try:
            snapshot = hub.snapshot_download(
                self.repository, allow_patterns=["*.gguf"], local_files_only=True
            )
            folder = Path(snapshot)
            names = [str(path.relative_to(folder)) for path in folder.rglob("*.gguf")]
            file = choose_file(names, selection)
        except Exception:  # the cache holds nothing of this repository
            return None
        is_complete = all((folder / part).exists() for part in parts(file))
        return folder / file if is_complete else None


def choose_file(names: Sequence[str], selection: str | None = None) -> str:
    """Return the name of the selected GGUF file of a repository, or of its first part.

    A selection is the name of a file, or the quantization in the name. Upper and lower case are
    not distinguished. The default is Q4_K_M, then Q8_0, then the first file by name.

    Raises:
        ModelLoadError: the repository does not have the file.
    """
    files = [name for name in sorted(names) if _is_model(name)]
    if not files:
        raise ModelLoadError("the repository holds no GGUF file")
    for choice in _DEFAULT_QUANTIZATIONS if selection is None else (selection,):
        stem = choice.lower().removesuffix(".gguf")
        as_quantization = re.compile(rf"(?:^|[-._/]){re.escape(choice.lower())}(?=[-._/])")
        by_name = [name for name in files if name.lower().removesuffix(".gguf") == stem]
        by_quantization = [name for name in files if as_quantization.search(name.lower())]
        if matches := by_name or by_quantization:
            return matches[0]
    if selection is not None:
        listed = ", ".join(files)[:_MAX_SHOWN_CHARACTERS]
        raise ModelLoadError(f"the repository holds no {selection!a}, but {listed}")
    return files[0]


def _is_model(name: str) -> bool:
    """Return whether a file is a GGUF model or its first part.

    An image projector (mmproj) is not a model.
    """
    part = _PART_SUFFIX.search(name)
    is_first = part is None or int(part[1]) == 1
    return is_first and name.lower().endswith(".gguf") and "mmproj" not in name.lower()


def parts(file: str) -> list[str]:
    """Return the names of all parts of a model file in order.

    With the first part, llama.cpp finds the others.
    """
    part = _PART_SUFFIX.search(file)
    if part is None:
        return [file]
    stem = file[: part.start()]
    n_parts = part[2]
    return [f"{stem}-{number:05}-of-{n_parts}.gguf" for number in range(1, int(n_parts) + 1)]
