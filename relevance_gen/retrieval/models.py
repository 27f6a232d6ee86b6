"""The models that look again at what words have found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import Attribute, field, frozen

from relevance_gen.errors import InvalidRequestError
from relevance_gen.index.passages import TextEncoder
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.ranking.stage import Reranking
from relevance_gen.retrieval.stages.cross_encoder import CrossEncoderRerank, TextReranker
from relevance_gen.retrieval.stages.dense_fusion import DenseFusion


def _made_by(name: str, method: str) -> Any:
    def check(_: Any, attribute: Attribute[Any], model: Any) -> None:
        if isinstance(model, str) or not (model is None or callable(getattr(model, method, None))):
            allowed, remedy = (
                f"{'an' if name == 'Encoder' else 'a'} {name} or None",
                f"make one: {name}(path)",
            )
            raise InvalidRequestError.must_be(attribute.name, allowed, model, remedy=remedy)

    return check


@frozen
class Models:
    """What a search has beside the words: an encoder and a reranker, or None; all else is an `InvalidRequestError`."""

    encoder: TextEncoder | None = field(default=None, validator=_made_by("Encoder", "encode"))
    reranker: TextReranker | None = field(default=None, validator=_made_by("Reranker", "score"))

    def rerankings(
        self, question: SearchParams, between: Sequence[Reranking] = ()
    ) -> tuple[Reranking, ...]:
        """Return what each does for a question: the encoder first, then what stands between, and last the reranker.

        Raises:
            InvalidRequestError: the question wants one of them to look at every chunk, and there is none.
        """
        for field_name, number, name, model in (
            ("num_candidates", question.num_candidates, "encoder", self.encoder),
            ("rerank_top_n", question.rerank_top_n, "reranker", self.reranker),
        ):
            if number is None and model is None:
                allowed, remedy = (
                    f"an integer where there is no {name}",
                    f"pass {name}, or leave it out",
                )
                raise InvalidRequestError.must_be(field_name, allowed, None, remedy=remedy)
        first = [] if self.encoder is None else [DenseFusion(self.encoder, question.num_candidates)]
        last = (
            []
            if self.reranker is None
            else [CrossEncoderRerank(self.reranker, question.rerank_top_n)]
        )
        return tuple(one for one in (*first, *between, *last) if one.n_candidates != 0)


NO_MODELS: Final = Models()
