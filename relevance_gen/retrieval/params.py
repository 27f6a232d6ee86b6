"""The options of one search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, get_args

from attrs import evolve, field, frozen

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.collapse import GroupKeys
from relevance_gen.retrieval.query.filters import Where
from relevance_gen.retrieval.query.operators import QueryOperator, read_signs
from relevance_gen.retrieval.query.parsing import Query, parse
from relevance_gen.types import Syntax

N_CANDIDATES: Final = 50
"""How many of the best by their words an encoder looks at, unless the caller says."""
N_RERANKED: Final = 20
"""How many of the best so far a reranker reads, unless the caller says."""
_IS_KEY: Final = checks.must_be("a string or None", lambda v: isinstance(v, str | GroupKeys | None))


@frozen
class SearchParams:
    """What a caller asks of some chunks. Verbs and dialects make it, and it is passed whole to what answers it.

    The arguments are those of `relevance_gen.search`; `where` is checked against the chunks when it is answered, and
    `distinct` may be the values of all chunks under a key, too.

    Raises:
        InvalidRequestError: one of them is not allowed.
    """

    query: str = field(converter=checks.to_python_scalar, validator=checks.not_blank)
    top_n: int = field(default=10, converter=checks.to_python_scalar, validator=checks.integer(1))
    true_order: bool = field(default=True, converter=checks.to_python_scalar, validator=checks.flag)
    where: Where | None = field(default=None, kw_only=True)
    min_relative_score: float = field(
        default=0.0, converter=checks.as_float, validator=checks.number(0, 1), kw_only=True
    )
    spans: bool = field(
        default=False, converter=checks.to_python_scalar, validator=checks.flag, kw_only=True
    )
    num_candidates: int | None = field(
        default=N_CANDIDATES,
        converter=checks.to_python_scalar,
        validator=checks.optional_count,
        kw_only=True,
    )
    rerank_top_n: int | None = field(
        default=N_RERANKED,
        converter=checks.to_python_scalar,
        validator=checks.optional_count,
        kw_only=True,
    )
    distinct: str | GroupKeys | None = field(default=None, validator=_IS_KEY, kw_only=True)
    syntax: Syntax = field(
        default="plain", validator=checks.one_of(*get_args(Syntax)), kw_only=True
    )
    correct_spelling: bool = field(default=True, validator=checks.flag, kw_only=True)

    def read(
        self, *, inflects: bool, is_english: bool = True
    ) -> tuple[Query, tuple[QueryOperator, ...]]:
        """Return the query, without what its signs take out of it, and these signs; the arguments are those of `parse`.

        Raises:
            InvalidRequestError: there are too many signs.
        """
        text, signs = (
            (self.query, ())
            if self.syntax == "plain"
            else read_signs(self.query, inflects=inflects)
        )
        query = parse(text, inflects=inflects, is_english=is_english)
        return (
            evolve(query, corrects=True)
            if self.correct_spelling and inflects and not signs
            else query
        ), signs


def questions(query: object, *options: Any, **more: Any) -> SearchParams | list[SearchParams]:
    """Return what a caller asks: one question, or several if the query is a list, a tuple, an array or a generator.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it, one of several queries as in ``query[3]``.
    """
    asked = checks.as_list(query)
    if not isinstance(asked, list | tuple | Iterator):
        return SearchParams(asked, *options, **more)
    found = []
    for place, one in enumerate(asked):
        try:
            found.append(SearchParams(one, *options, **more))
        except InvalidRequestError as error:
            raise error.with_field(
                f"query[{place}]" if error.field == "query" else error.field
            ) from None
    return found
