"""Public values: frozen attrs classes with the fields of the documented interface.

Every class checks its fields when it is created. Checks that need the model or the server settings
(for example, whether a prompt fits the context) happen when the request is executed.
"""

from relevance_gen.types.asking import (
    MIN_CONFIDENCE,
    CitedSentence,
    CitedSpan,
    CompressionResponse,
    PromptResponse,
    PromptSource,
    SelectedSentence,
)
from relevance_gen.types.documents import DocumentPart, ExtractionResponse
from relevance_gen.types.explanation import Explanation, Passage, TermContribution
from relevance_gen.types.generation import (
    MAX_BIASED_TOKENS,
    MAX_SAMPLES,
    MAX_TOP_LOGPROBS,
    Completion,
    ContentPart,
    FinishReason,
    GenerationRequest,
    GenerationResponse,
    PartKind,
    Stats,
    TokenLogprob,
    TokenTexts,
)
from relevance_gen.types.search import (
    Chunk,
    Metadata,
    SearchMetadata,
    SearchResponse,
    SearchResult,
    Span,
    Syntax,
    WeightingName,
)

__all__ = [
    "MAX_BIASED_TOKENS",
    "MAX_SAMPLES",
    "MAX_TOP_LOGPROBS",
    "MIN_CONFIDENCE",
    "Chunk",
    "CitedSentence",
    "CitedSpan",
    "Completion",
    "CompressionResponse",
    "ContentPart",
    "DocumentPart",
    "Explanation",
    "ExtractionResponse",
    "FinishReason",
    "GenerationRequest",
    "GenerationResponse",
    "Metadata",
    "PartKind",
    "Passage",
    "PromptResponse",
    "PromptSource",
    "SearchMetadata",
    "SearchResponse",
    "SearchResult",
    "SelectedSentence",
    "Span",
    "Stats",
    "Syntax",
    "TermContribution",
    "TokenLogprob",
    "TokenTexts",
    "WeightingName",
]
