"""A reranking model, which scores a query and a text together.

The score comes from a ranking head, or from the word that the model generates next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.errors import InvalidRequestError, ModelLoadError, RerankerError
from relevance_gen.llama.language_model import Tokens
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.pooled_model import PooledModel
from relevance_gen.llama.runtime.library import lib
from relevance_gen.llama.weights import OnProgress, has_tensor, metadata
from relevance_gen.text.chunking import spans

DOCUMENT_OFFSET: Final = "relevance_gen.document_offset"
"""The metadata key under which `tools/convert_bert.py` stores where the second copy of a vocabulary
begins."""
_HEAD_TENSORS: Final = ("cls.weight", "cls.output.weight")
_CONVERT: Final = "convert the original with tools/convert_bert.py"
_MAX_PASSAGE_CHARACTERS: Final = 1 << 16
"""Characters that are tokenized at once; longer texts are split first."""
_MIN_PAIR_TOKENS: Final = 32
"""Tokens that must remain for query and text together."""
_QWEN3_TEMPLATE: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web '
    "search query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""Source: the model card of Qwen3-Reranker on the Hugging Face hub."""
_CONTROL_TOKEN: Final = re.compile(r"(<\|[^|<>]+\|>|</?s>|<bos>|<(?:start|end)_of_turn>)")
_FIELD: Final = re.compile(r"\{(query|document)\}")


@frozen(eq=False)
class _PromptSegment:
    """A segment of a prompt.

    Attributes:
        content: token ids; or a text with the fields ``{query}`` and ``{document}``, which is
            tokenized after the fields are filled in.
        offset: added to each token id of the segment, to select a second copy of the vocabulary.
    """

    content: Tokens | str
    offset: int = 0


class CrossEncoder(PooledModel):
    """A loaded GGUF reranker: BERT with a ranking head, Qwen3-Reranker, or a generative model.

    Args:
        path, options, on_progress: see `PooledModel`.
        template: the prompt of a generative reranker; see `relevance_gen.Reranker`.
        answers: the words that a generative reranker generates for yes and for no, in this order;
            each must be one token.

    Raises:
        ModelLoadError: also if llama.cpp would compute wrong scores with this file.
        InvalidRequestError: `n_ctx` or `answers` do not fit the model.
    """

    error_class = RerankerError

    def __init__(
        self,
        path: Path,
        options: ModelOptions,
        *,
        template: str | None = None,
        answers: Sequence[str] = ("yes", "no"),
        on_progress: OnProgress | None = None,
    ) -> None:
        self._template = template
        self._answers = answers
        # If the file has a ranking head, it is used: converters do not always set the pooling type.
        self._n_head_tensors = sum(has_tensor(path, name) for name in _HEAD_TENSORS)
        self._has_head = self._n_head_tensors > 0
        pooling_type = lib.LLAMA_POOLING_TYPE_NONE
        if self._has_head:
            pooling_type = lib.LLAMA_POOLING_TYPE_RANK
        super().__init__(path, options, on_progress=on_progress, pooling_type=pooling_type)

    def _prepare(self, path: Path) -> None:
        self._n_labels = int(lib.llama_model_n_cls_out(self._weights.handle))
        if self._has_head:
            self._segments = self._ranking_head_segments(path)
        else:
            self._segments = self._generative_segments(path)
        self._n_template_tokens = len(self._pair("", ""))
        self._max_pair_tokens = self.n_ctx - self._n_template_tokens
        if self._max_pair_tokens < _MIN_PAIR_TOKENS:
            min_n_ctx = self._n_template_tokens + _MIN_PAIR_TOKENS
            raise InvalidRequestError.must_be(
                "n_ctx", f"at least {min_n_ctx} for this model", self.n_ctx
            )
        self.logit(self._pair("a", "a"))

    # ── The prompt ────────────────────────────────────────────────────────────────────────────────

    def _ranking_head_segments(self, path: Path) -> list[_PromptSegment]:
        """Return the segments of the input of a model with a ranking head.

        Raises:
            ModelLoadError: llama.cpp would compute wrong scores with this file.
        """
        model = self._weights.handle
        architecture = metadata(model, "general.architecture")
        if (architecture, self._n_labels) == ("qwen3", 2):
            return self._template_segments(self._find_template(path) or _QWEN3_TEMPLATE)
        if architecture != "bert" or self._n_labels != 1:
            raise ModelLoadError(
                f"{path} holds a ranking head ({architecture}, labels: {self._n_labels}) that llama.cpp does not "
                "compute as it was trained; use a model of the BERT, XLM-RoBERTa or Qwen3 family"
            )
        if self._n_head_tensors < len(_HEAD_TENSORS):
            raise ModelLoadError(
                f"{path} lacks a part of its ranking head, lost when it was converted; {_CONVERT}"
            )
        try:
            offset = int(metadata(model, DOCUMENT_OFFSET) or 0)
            n_types = int(metadata(model, "tokenizer.ggml.token_type_count") or 1)
        except ValueError:
            raise ModelLoadError(
                f"{path} is damaged: the metadata of its token types are not numbers; {_CONVERT}"
            ) from None
        offset = min(offset, self._weights.n_vocab)
        if n_types > 1 and not offset:
            raise ModelLoadError(
                f"{path} would compute wrong scores, because texts would have the token type of queries; {_CONVERT}"
            )
        special_tokens = self._tokenizer.surrounding_tokens()
        # RoBERTa and its family separate query and text with two tokens.
        is_wordpiece = lib.llama_vocab_type(self._weights.vocabulary) == lib.LLAMA_VOCAB_TYPE_WPM
        n_separators = 1 if is_wordpiece else 2
        separators = [_PromptSegment(special_tokens.after)] * n_separators
        # llama.cpp adds the vector of token type 0 to all tokens; the vectors of the second copy
        # are adjusted so that the sum is that of type 1.
        return [
            _PromptSegment(special_tokens.before),
            _PromptSegment("{query}"),
            *separators,
            _PromptSegment("{document}", offset),
            _PromptSegment(special_tokens.after, offset),
        ]

    def _generative_segments(self, path: Path) -> list[_PromptSegment]:
        """Return the segments of the prompt of a generative reranker.

        Stores the tokens of `answers`, too.

        Raises:
            ModelLoadError: the model does not generate text, or no prompt for it is known.
            InvalidRequestError: `answers` are not words of one token each.
        """
        model = self._weights.handle
        pooling = metadata(model, f"{metadata(model, 'general.architecture')}.pooling_type")
        if not self._memory or pooling in {"1", "2", "3"}:
            raise ModelLoadError(
                f"{path} holds an embedding model, which does not rank: pass it to Encoder"
            )
        template = self._find_template(path)
        if template is None:
            raise ModelLoadError(
                f"{path} holds a model that generates text, without a prompt for reranking; pass template= with "
                "{query} and {document}, which ends where the model must answer yes or no"
            )
        answers = [self._tokenizer.tokenize_plain(answer) for answer in self._answers]
        if any(len(tokens) != 1 for tokens in answers):
            raise InvalidRequestError.must_be(
                "answers", "words of one token each for this model", self._answers
            )
        self._yes_and_no = np.concatenate(answers)
        return self._template_segments(template)

    def _template_segments(self, template: str) -> list[_PromptSegment]:
        """Return the segments of a prompt.

        Control tokens in the query and the text are plain text.
        """
        segments = []
        for index, text in enumerate(_CONTROL_TOKEN.split(template)):
            is_control_token = index % 2 == 1  # re.split returns texts and separators in turn
            content: Tokens | str = text
            if is_control_token:
                content = self._tokenizer.tokenize_plain(text, parse_special=True)
            segments.append(_PromptSegment(content))
        return segments

    def _find_template(self, path: Path) -> str | None:
        """Return the template of the prompt; None if the model has none.

        It is the requested template, else the one in the file's metadata, else that of
        Qwen3-Reranker if the model name in the metadata or the name of the file contains
        "qwen3-reranker" or "qwen3 reranker".
        """
        if self._template:
            return self._template
        template = lib.llama_model_chat_template(self._weights.handle, b"rerank")
        if template:
            return str(template.decode(errors="replace"))
        names = f"{metadata(self._weights.handle, 'general.name')} {path.name}"
        is_qwen3 = "qwen3-reranker" in names.lower().replace(" ", "-")
        return _QWEN3_TEMPLATE if is_qwen3 else None

    # ── Pairs of query and text ───────────────────────────────────────────────────────────────────

    def pairs(self, query: str, text: str) -> Iterator[Tokens]:
        """Yield the inputs for a query and a text.

        This is a single input if both fit into `n_ctx` tokens, otherwise an input for each passage.
        A query is truncated to half of the available tokens; a longer text is split as by `split`.
        """
        query = query[:_MAX_PASSAGE_CHARACTERS]
        max_query_tokens = self._max_pair_tokens // 2
        n_query_tokens = len(self._pair(query, "")) - self._n_template_tokens
        # Repeated, because a template may use the query several times.
        while n_query_tokens > max_query_tokens:
            query = query[: len(query) * max_query_tokens // n_query_tokens]
            n_query_tokens = len(self._pair(query, "")) - self._n_template_tokens
        max_characters = _MAX_PASSAGE_CHARACTERS
        if len(text) <= max_characters:
            tokens = self._pair(query, text)
            if len(tokens) <= self.n_ctx or len(text) <= 1:
                yield tokens[: self.n_ctx]
                return
            n_fixed = self._n_template_tokens + n_query_tokens
            n_text_tokens = len(tokens) - n_fixed
            max_characters = max(1, len(text) * (self.n_ctx - n_fixed) // n_text_tokens)
        for start, end in list(spans(text, max_characters)) or [(0, 0)]:
            yield from self.pairs(query, text[start:end])

    def _pair(self, query: str, text: str) -> Tokens:
        values = {"query": query, "document": text}
        parts = []
        for segment in self._segments:
            content = segment.content
            if isinstance(content, str):
                filled = _FIELD.sub(lambda field: values[field[1]], content)
                content = self._tokenizer.tokenize_plain(filled)
            parts.append(content + np.int32(segment.offset))
        return np.concatenate(parts)

    def logit(self, tokens: Tokens) -> float:
        """Return the log odds that the text answers the query.

        Args:
            tokens: an input of the model, from `pairs`.

        Raises:
            RerankerError: llama.cpp failed, or the file is damaged.
        """
        logit = self._head_logit(tokens) if self._has_head else self._generative_logit(tokens)
        if not math.isfinite(logit):
            raise RerankerError("the model returned a score that is not finite")
        return logit

    def _head_logit(self, tokens: Tokens) -> float:
        self._run(tokens)
        scores = self._pooled_output(self._n_labels)
        if self._n_labels == 1:
            return float(scores[0])
        # The probabilities of yes and no
        log_scores = np.log(np.maximum(scores, np.finfo(np.float32).tiny))
        return float(log_scores[0] - log_scores[1])

    def _generative_logit(self, tokens: Tokens) -> float:
        is_last = np.arange(len(tokens)) == len(tokens) - 1
        self._run(tokens, is_last)
        first = lib.llama_get_logits_ith(self._context, -1)
        yes, no = self._copy_floats(first, self._weights.n_vocab)[self._yes_and_no]
        return float(yes - no)
