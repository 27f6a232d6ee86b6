"""Details of the server's models, read from their files without loading the models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from relevance_gen.llama.model_files.gguf_metadata import read_metadata
from relevance_gen.llama.model_files.resolve import files_of
from relevance_gen.serve.settings import ModelTask, NamedModel, Settings


@frozen
class ModelDetails:
    """Details of a model of the server.

    Attributes:
        name: the name for clients.
        task: the purpose: "generate", "embed" or "rerank".
        n_bytes: size of all files of the model; 0 if the model is not on this machine yet.
        modified_ns: latest modification time of a file, as Unix time in nanoseconds.
        metadata: the metadata of the GGUF file; empty if the model is not on this machine yet.
        max_n_ctx: maximum tokens of a context by the settings; None for the limit in the metadata.
    """

    name: str
    task: ModelTask
    n_bytes: int
    modified_ns: int
    metadata: Mapping[str, Any]
    max_n_ctx: int | None

    @property
    def architecture(self) -> str:
        """The architecture, such as "llama"; empty if it is unknown."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def n_ctx(self) -> int | None:
        """Maximum tokens of a context; None if it is unknown."""
        trained_n_ctx: int | None = self.metadata.get(f"{self.architecture}.context_length")
        return self.max_n_ctx or trained_n_ctx


def model_details(settings: Settings, task: ModelTask, source: NamedModel) -> ModelDetails:
    """Return the details of a model, from its files as they are now."""
    files = files_of(source.file)
    stats = [file.stat() for file in files]
    modified_ns = max((stat.st_mtime_ns for stat in stats), default=0)
    return ModelDetails(
        source.name,
        task,
        n_bytes=sum(stat.st_size for stat in stats),
        modified_ns=modified_ns,
        metadata=read_metadata(files[0], modified_ns) if files else {},
        max_n_ctx=settings.model_options.n_ctx if task == "generate" else None,
    )
