"""A model that says how well a text answers a query: by a ranking head, or as a judge by the word it would say next."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from relevance_gen.errors import InvalidRequestError, ModelLoadError, RerankerError
from relevance_gen.llama.language_model import Tokens
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.pooled_model import PooledModel
from relevance_gen.llama.runtime.library import lib
from relevance_gen.llama.weights import OnProgress, has_tensor, metadata
from relevance_gen.text.chunking import spans

DOCUMENT_OFFSET: Final = "relevance_gen.document_offset"
"""The key under which `tools/convert_bert.py` says where the second copy of a vocabulary begins."""
_CONVERT: Final = "convert the original by tools/convert_bert.py"
_LONGEST: Final = 1 << 16
"""Characters of a text that are tokenized at once: a longer one is cut before."""
_FEWEST_TOKENS: Final = 32
"""Room that query and text must have together."""
_QWEN3_TEMPLATE: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web '
    "search query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""Source: the card of Qwen3-Reranker on the Hugging Face hub."""
_CONTROL: Final = re.compile(r"(<\|[^|<>]+\|>|</?s>|<bos>|<(?:start|end)_of_turn>)")
_FIELD: Final = re.compile(r"\{(query|document)\}")
_Piece: TypeAlias = tuple[Tokens | str, int]
"""Tokens, or a text with places for query and document, and what is added to the numbers of its tokens."""


class CrossEncoder(PooledModel):
    """A GGUF file of a reranker, loaded: BERT's family with a ranking head, Qwen3-Reranker, or any judge.

    Template and answers say how a judge is asked, see `relevance_gen.Reranker`; the rest is as for `PooledModel`. It raises
    a `ModelLoadError` also where llama.cpp would compute wrong scores with this file, and an `InvalidRequestError`
    where `n_ctx` or `answers` do not fit the model.
    """

    failure = RerankerError

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: ModelOptions,
        *,
        template: str | None = None,
        answers: Sequence[str] = ("yes", "no"),
        on_progress: OnProgress | None = None,
    ) -> None:
        self._template, self._answers = template, answers
        # A head is used wherever there is one: converters do not always write that the model ranks.
        self._has_head = has_tensor(path, "cls.weight") or has_tensor(path, "cls.output.weight")
        pooling_type = (
            lib.LLAMA_POOLING_TYPE_RANK if self._has_head else lib.LLAMA_POOLING_TYPE_NONE
        )
        super().__init__(path, options, on_progress=on_progress, pooling_type=pooling_type)

    def _prepare(self, path: str | os.PathLike[str]) -> None:
        self._n_labels = int(lib.llama_model_n_cls_out(self._weights.handle))
        self._pieces = self._pieces_of_head(path) if self._has_head else self._pieces_of_judge(path)
        self._room = self.n_ctx - len(self._pair("", ""))
        if self._room < _FEWEST_TOKENS:
            least = self.n_ctx - self._room + _FEWEST_TOKENS
            raise InvalidRequestError.must_be(
                "n_ctx", f"at least {least} for this model", self.n_ctx
            )
        self.logit(self._pair("a", "a"))

    def _pieces_of_head(self, path: str | os.PathLike[str]) -> list[_Piece]:
        """Return what a model with a ranking head reads; refuse one with which llama.cpp scores wrong."""
        model = self._weights.handle
        architecture = metadata(model, "general.architecture")
        if (architecture, self._n_labels) == ("qwen3", 2):
            return self._pieces_of(self._find_template(path) or _QWEN3_TEMPLATE)
        if architecture != "bert" or self._n_labels != 1:
            raise ModelLoadError(
                f"{path} holds a ranking head ({architecture}, labels: {self._n_labels}) that llama.cpp does not "
                "compute as it was trained; take a model of BERT's, XLM-RoBERTa's or Qwen3's family"
            )
        if not has_tensor(path, "cls.weight") or not has_tensor(path, "cls.output.weight"):
            raise ModelLoadError(
                f"{path} lacks a part of its ranking head, lost when it was converted; {_CONVERT}"
            )
        try:
            offset, n_types = (
                min(int(metadata(model, key) or default), self._weights.n_vocab)
                for key, default in ((DOCUMENT_OFFSET, 0), ("tokenizer.ggml.token_type_count", 1))
            )
        except ValueError:
            raise ModelLoadError(
                f"{path} is damaged: it does not say where its tokens are; {_CONVERT}"
            ) from None
        if n_types > 1 and not offset:
            raise ModelLoadError(
                f"{path} would score wrong, the text being taken for query; {_CONVERT}"
            )
        is_wordpiece = lib.llama_vocab_type(self._weights.vocabulary) == lib.LLAMA_VOCAB_TYPE_WPM
        begin, end = self._tokenizer.around()
        ends = [(end, 0)] * (
            1 if is_wordpiece else 2
        )  # RoBERTa and its family put two between query and text
        # llama.cpp adds the vector of the token type 0 to all tokens; the second copy's vectors make it that of 1.
        return [(begin, 0), ("{query}", 0), *ends, ("{document}", offset), (end, offset)]

    def _pieces_of_judge(self, path: str | os.PathLike[str]) -> list[_Piece]:
        """Return how a model that generates is asked; refuse one that does not, or does not say how."""
        model = self._weights.handle
        pooling = metadata(model, f"{metadata(model, 'general.architecture')}.pooling_type")
        if not self._memory or pooling in {"1", "2", "3"}:
            raise ModelLoadError(
                f"{path} holds an embedding model, which does not rank: give it to Encoder"
            )
        template = self._find_template(path)
        if template is None:
            raise ModelLoadError(
                f"{path} holds a model that generates text, and does not say how it is asked to judge; pass template= "
                "with {query} and {document}, which ends where the model has to say yes or no"
            )
        words = [self._tokenizer.tokenize_plain(word) for word in self._answers]
        if any(len(tokens) != 1 for tokens in words):
            raise InvalidRequestError.must_be(
                "answers", "words of one token each for this model", self._answers
            )
        self._yes_and_no = np.concatenate(words)
        return self._pieces_of(template)

    def _pieces_of(self, template: str) -> list[_Piece]:
        """Return the pieces of a prompt, every second of which is a control token; query and text can have none."""
        pieces = enumerate(_CONTROL.split(template))
        return [
            (self._tokenizer.tokenize_plain(piece, parse_special=True) if n % 2 else piece, 0)
            for n, piece in pieces
        ]

    def _find_template(self, path: str | os.PathLike[str]) -> str | None:
        """Return the prompt that was asked for, or that of the file, or that of the model of its name."""
        template = lib.llama_model_chat_template(self._weights.handle, b"rerank")
        name = (
            f"{metadata(self._weights.handle, 'general.name')} {Path(path).name}".lower().replace(
                " ", "-"
            )
        )
        of_name = _QWEN3_TEMPLATE if "qwen3-reranker" in name else None
        return self._template or (str(template.decode(errors="replace")) if template else of_name)

    def pairs(self, query: str, text: str) -> Iterator[Tokens]:
        """Yield what is read for a query and a text: one pair if both fit into `n_ctx` tokens, else one a passage.

        Of a query that takes more than half of the room the beginning counts; a longer text is cut as `split` cuts.
        """
        query, most, n_around = query[:_LONGEST], self._room // 2, len(self._pair("", ""))
        while (
            n_tokens := len(self._pair(query, "")) - n_around
        ) > most:  # a template may name it several times
            query = query[: len(query) * most // n_tokens]
        size = _LONGEST
        if len(text) <= size:
            tokens = self._pair(query, text)
            if len(tokens) <= self.n_ctx or len(text) <= 1:
                yield tokens[: self.n_ctx]
                return
            n_around = len(self._pair(query, ""))
            size = max(1, len(text) * (self.n_ctx - n_around) // (len(tokens) - n_around))
        for start, end in list(spans(text, size)) or [(0, 0)]:
            yield from self.pairs(query, text[start:end])

    def _pair(self, query: str, text: str) -> Tokens:
        def tokens(piece: Tokens | str) -> Tokens:
            if not isinstance(piece, str):
                return piece
            values = {"query": query, "document": text}
            return self._tokenizer.tokenize_plain(_FIELD.sub(lambda field: values[field[1]], piece))

        return np.concatenate([tokens(piece) + np.int32(offset) for piece, offset in self._pieces])

    def logit(self, tokens: Tokens) -> float:
        """Return how well the text of a pair answers the query: the logarithm of the odds that it does.

        It raises a `RerankerError` where llama.cpp failed, or the file is damaged.
        """
        if self._has_head:
            self._read(tokens)
            scores = self._pooled(self._n_labels)  # a logit, or the probabilities of yes and no
            told = (
                scores
                if self._n_labels == 1
                else np.log(np.maximum(scores, np.finfo(np.float32).tiny))
            )
        else:
            self._read(tokens, np.arange(len(tokens)) == len(tokens) - 1)
            told = self._floats(lib.llama_get_logits_ith(self._context, -1), self._weights.n_vocab)[
                self._yes_and_no
            ]
        logit = float(told[0] - told[1] if len(told) > 1 else told[0])
        if not math.isfinite(logit):
            raise RerankerError("the model gives no finite score")
        return logit
