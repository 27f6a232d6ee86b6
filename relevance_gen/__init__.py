"""Search texts, and generate answers from the results: see `search`, `generate` and `ask`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from relevance_gen.errors import (
    BusyError,
    ChunksMissingError,
    ClusterError,
    EncoderError,
    GenerationError,
    IndexBuildError,
    IndexFormatError,
    IndexUnavailableError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    RelevanceGenError,
    RequestCancelledError,
    RerankerError,
    RunnerClosedError,
    ShuttingDownError,
    TimedOutError,
    TooLargeError,
    UnknownIndexError,
)
from relevance_gen.types import (
    Chunk,
    CitedSentence,
    CitedSpan,
    Completion,
    CompressionResponse,
    DocumentPart,
    Explanation,
    ExtractionResponse,
    GenerationRequest,
    GenerationResponse,
    PromptResponse,
    PromptSource,
    SearchMetadata,
    SearchResponse,
    SearchResult,
    SelectedSentence,
    Span,
    Stats,
    TermContribution,
    TokenLogprob,
)

if TYPE_CHECKING:
    from relevance_gen.asking.answer import Answer, Source
    from relevance_gen.asking.api import AnswerStream, ask, ask_stream
    from relevance_gen.asking.citations import cite
    from relevance_gen.asking.compression import compress
    from relevance_gen.documents.reading import read_documents, split_document
    from relevance_gen.embedding.encoder import Encoder
    from relevance_gen.embedding.reranker import Reranker
    from relevance_gen.folders.folder_index import FolderIndex
    from relevance_gen.generation.api import chat, generate
    from relevance_gen.generation.runner import Runner
    from relevance_gen.generation.stream import TextPiece, TextStream
    from relevance_gen.retrieval.api import search
    from relevance_gen.retrieval.chunk_index import ChunkIndex
    from relevance_gen.text.chunking import split
    from relevance_gen.text.token_counting import TokenCounter, token_counter

__version__ = "0.2.0"

__all__ = [
    "Answer",
    "AnswerStream",
    "BusyError",
    "Chunk",
    "ChunkIndex",
    "ChunksMissingError",
    "CitedSentence",
    "CitedSpan",
    "ClusterError",
    "Completion",
    "CompressionResponse",
    "DocumentPart",
    "Encoder",
    "EncoderError",
    "Explanation",
    "ExtractionResponse",
    "FolderIndex",
    "GenerationError",
    "GenerationRequest",
    "GenerationResponse",
    "IndexBuildError",
    "IndexFormatError",
    "IndexUnavailableError",
    "InvalidRequestError",
    "ModelLoadError",
    "OverloadedError",
    "PromptResponse",
    "PromptSource",
    "RelevanceGenError",
    "RequestCancelledError",
    "Reranker",
    "RerankerError",
    "Runner",
    "RunnerClosedError",
    "SearchMetadata",
    "SearchResponse",
    "SearchResult",
    "SelectedSentence",
    "ShuttingDownError",
    "Source",
    "Span",
    "Stats",
    "TermContribution",
    "TextPiece",
    "TextStream",
    "TimedOutError",
    "TokenCounter",
    "TokenLogprob",
    "TooLargeError",
    "UnknownIndexError",
    "ask",
    "ask_stream",
    "chat",
    "cite",
    "compress",
    "generate",
    "read_documents",
    "search",
    "split",
    "split_document",
    "token_counter",
]

_LAZY_MODULES = {
    "Answer": "relevance_gen.asking.answer",
    "AnswerStream": "relevance_gen.asking.api",
    "ChunkIndex": "relevance_gen.retrieval.chunk_index",
    "Encoder": "relevance_gen.embedding.encoder",
    "FolderIndex": "relevance_gen.folders.folder_index",
    "Reranker": "relevance_gen.embedding.reranker",
    "Runner": "relevance_gen.generation.runner",
    "Source": "relevance_gen.asking.answer",
    "TextPiece": "relevance_gen.generation.stream",
    "TextStream": "relevance_gen.generation.stream",
    "TokenCounter": "relevance_gen.text.token_counting",
    "ask": "relevance_gen.asking.api",
    "ask_stream": "relevance_gen.asking.api",
    "chat": "relevance_gen.generation.api",
    "cite": "relevance_gen.asking.citations",
    "compress": "relevance_gen.asking.compression",
    "generate": "relevance_gen.generation.api",
    "read_documents": "relevance_gen.documents.reading",
    "search": "relevance_gen.retrieval.api",
    "split": "relevance_gen.text.chunking",
    "split_document": "relevance_gen.documents.reading",
    "token_counter": "relevance_gen.text.token_counting",
}


def __getattr__(name: str) -> object:
    if name == "aio":
        return importlib.import_module("relevance_gen.aio")
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
