"""Fetch a model from the Hugging Face hub: the only module that uses huggingface_hub."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from relevance_gen.errors import ModelLoadError, to_install

_NAME = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<path>[\w./-]+\.gguf)|:(?P<wanted>[\w./-]+))?",
    re.ASCII | re.IGNORECASE,
)
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_PREFERRED = ("Q4_K_M", "Q8_0")
_MOST_SHOWN = 300
_TIMEOUT_S = 5.0
"""How long the hub may take to connect, and to answer what files a repository has."""
_log = logging.getLogger(__name__)


@frozen
class HubModel:
    """A file of a repository on the hub, ``owner/name``.

    What is `wanted` is its name without ``.gguf``, or the quantization in its name; ``None`` for what most want.
    """

    repository: str
    wanted: str | None

    @classmethod
    def read(cls, text: str) -> HubModel | None:
        """Read ``owner/name``, ``owner/name:FILE-OR-QUANTIZATION`` or ``owner/name/FILE``; ``None`` of all else."""
        name = _NAME.fullmatch(text)
        return None if name is None else cls(name["repository"], name["path"] or name["wanted"])

    def fetch(self) -> Path:
        """Return the file: from the hub's own cache, or downloaded into it, on a terminal with a bar.

        It raises a `ModelLoadError` where it cannot be downloaded, or there is no such file; the message says what to
        do.
        """
        try:
            hub = importlib.import_module("huggingface_hub")
        except ImportError:
            raise ModelLoadError(
                f"{self.repository} is no file here; to download it from the Hugging Face hub, {to_install('hub')}"
            ) from None
        # The hub is asked only where the cache does not hold what it would be asked for.
        file = self._cached(hub, self.wanted or _PREFERRED[0])
        if file is None:
            try:
                file = self._downloaded(hub)
            except ModelLoadError as error:
                raise ModelLoadError(f"{self.repository}: {error}") from None
            except Exception as error:  # of its own, of its HTTP client, or of the file system
                file = self._cached(hub, self.wanted)
                if file is None:
                    reason = " ".join(str(error).split())[:_MOST_SHOWN] or type(error).__name__
                    raise ModelLoadError(
                        f"{self.repository} is no file here, and cannot be downloaded from the Hugging Face hub: "
                        f"{reason}; check the name and the network, or give the path of a GGUF file (a model that was "
                        "downloaded before needs no network)"
                    ) from error
        _log.info("using %s of %s", file.name, self.repository)
        return file

    def _downloaded(self, hub: Any) -> Path:
        # Not list_repo_files, which tries five times and more, half a minute, where there is no network.
        siblings = hub.HfApi().model_info(self.repository, timeout=_TIMEOUT_S).siblings
        file = choose_file([each.rfilename for each in siblings or ()], self.wanted)
        _log.info("downloading %s of %s from the Hugging Face hub", file, self.repository)
        first, *_ = [Path(hub.hf_hub_download(self.repository, part)) for part in parts(file)]
        return first

    def _cached(self, hub: Any, wanted: str | None) -> Path | None:
        """Return what the hub's cache holds, with all its parts; ``None`` if it does not."""
        try:
            folder = Path(
                hub.snapshot_download(
                    self.repository, allow_patterns=["*.gguf"], local_files_only=True
                )
            )
            file = choose_file(
                [str(path.relative_to(folder)) for path in folder.rglob("*.gguf")], wanted
            )
        except Exception:  # nothing of this repository is there
            return None
        return folder / file if all((folder / part).exists() for part in parts(file)) else None


def choose_file(names: Sequence[str], wanted: str | None = None) -> str:
    """Return the GGUF file that is wanted of a repository's files, or the first of its parts.

    What is wanted is a file's name or the quantization in it, in any case; by default Q4_K_M, then Q8_0, then the
    first. It raises a `ModelLoadError` where there is none.
    """
    files = []
    for name in sorted(names):
        part = _PART.search(
            name
        )  # llama.cpp finds the further parts by the first; a projector of images is no model
        if (
            name.lower().endswith(".gguf")
            and "mmproj" not in name.lower()
            and (part is None or int(part[1]) == 1)
        ):
            files.append(name)
    if not files:
        raise ModelLoadError("the repository holds no GGUF file")
    for choice in _PREFERRED if wanted is None else (wanted,):
        stem = choice.lower().removesuffix(".gguf")
        between_separators = re.compile(
            rf"(?:^|[-._/]){re.escape(choice.lower())}(?=[-._/])"
        )  # as a quantization
        named = [name for name in files if name.lower().removesuffix(".gguf") == stem]
        if matching := named or [name for name in files if between_separators.search(name.lower())]:
            return matching[0]
    if wanted is not None:
        shown = ", ".join(files)
        raise ModelLoadError(f"the repository holds no {wanted!a}, but {shown[:_MOST_SHOWN]}")
    return files[0]


def parts(file: str) -> list[str]:
    """Return the names of all parts of a file that is in several, the first first; llama.cpp finds the others by it."""
    part = _PART.search(file)
    if part is None:
        return [file]
    return [
        f"{file[: part.start()]}-{number:05}-of-{part[2]}.gguf"
        for number in range(1, int(part[2]) + 1)
    ]
