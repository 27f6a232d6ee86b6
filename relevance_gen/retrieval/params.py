"""The options of one search, and the models that a search uses.

Options have names, defaults, validation and documentation. `SearchParams` is the only place that
documents an option. `SearchOptions` repeats names and types for type checkers; `with_options`
copies names, defaults and documentation to the functions that take options.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Final, TypedDict, TypeVar, get_args

from attrs import NOTHING, Attribute, evolve, field, fields, fields_dict, frozen

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError, did_you_mean
from relevance_gen.index.passages import TextEncoder
from relevance_gen.retrieval.collapse import GroupKeys
from relevance_gen.retrieval.query.filters import Where
from relevance_gen.retrieval.query.operators import find_prefixes, parse_operators
from relevance_gen.retrieval.query.parsing import Query, parse, with_prefixes
from relevance_gen.retrieval.ranking.stage import RerankStage
from relevance_gen.retrieval.stages.cross_encoder import CrossEncoderRerank, TextReranker
from relevance_gen.retrieval.stages.dense_fusion import DenseFusion
from relevance_gen.retrieval.stages.neighbors import MAX_NEIGHBORS, Neighborhood, NeighborLending
from relevance_gen.types import Syntax

DEFAULT_NUM_CANDIDATES: Final = 50
DEFAULT_RERANK_TOP_N: Final = 20
_IS_DISTANCE: Final = checks.integer(0, MAX_NEIGHBORS)
_IS_NEIGHBORHOOD: Final = checks.Rule(
    "0, 1 or 2",
    lambda value: isinstance(value, Neighborhood) or _IS_DISTANCE.is_allowed(value),
)
_IS_GROUP_KEY: Final = checks.Rule(
    "a string or None", lambda value: isinstance(value, str | GroupKeys | None)
)
Function = TypeVar("Function", bound=Callable[..., Any])
_PLACEHOLDER: Final = re.compile(r"\n( +)options: [^\n]*(?=\n)")
_ENTRY: Final = re.compile(r"^        (\w+): (.*(?:\n {12}.*)*)", re.MULTILINE)
ALLOW_PARTIAL: Final = (
    "in a cluster, search the available shards while others are lost;\n"
    "            ``response.metadata.num_missing_chunks`` is the number of chunks that were not searched."
)


def _option(
    default: Any,
    rule: checks.Rule,
    convert: Callable[[Any], Any] = checks.to_python_scalar,
    *,
    kw_only: bool = True,
) -> Any:
    """Return a field of `SearchParams` with a default and a rule for its values.

    `convert` is applied to a value before the rule is checked.
    """
    rules = {"rule": rule, "convert": convert}
    return field(default=default, metadata=rules, kw_only=kw_only)


@frozen
class SearchParams:
    """The query and the options of one search.

    Functions and HTTP adapters create it; `answer` executes it.

    Args:
        query: the text to search for, not blank.
        top_n: maximum number of results, at least 1.
        true_order: return results in the order of the chunks (true) or best first (false).
        where: return only chunks that pass this filter; scores use the statistics of all chunks.
            Metadata that a chunk must have (``{"source": "a.txt"}``, a list of values, or a range
            of numbers or of ISO dates, ``{"year": {"gte": 2020, "lt": 2024}}``, with the bounds
            ``gt``, ``gte``, ``lt`` and ``lte``), a callable of a chunk's metadata, positions, or a
            mask with one boolean for each position. In a cluster a callable is sent to the nodes,
            which run it.
        min_relative_score: return only results whose score is at least this share of the best
            score, in [0, 1].
        distinct: return at most one result for each value of this metadata key: the best, of equal
            scores the earlier; its ``num_collapsed`` counts the chunks that are left out. Every
            chunk without the key is returned. All chunks that share a word with the query are
            ranked for that.
        fill: after the results, return chunks that share nothing with the query, up to `top_n`,
            with score 0: first neighbors of the best results, then the others in their order.
            They must pass `where` and the operators of the query; `min_relative_score` does not
            exclude them.
        neighbors: for chunks that form a running text: add to a chunk's score a share of the scores
            of the chunks before and after it, at a distance of at most this number of positions,
            0 to 2; 0 adds none. A chunk that shares no word with the query can be a result.
        spans: return in each result the character ranges that match the query.
        num_candidates: number of chunks, the best by lexical score, that an encoder scores; None
            scores every chunk, and finds chunks that share no word with the query; 0 disables the
            encoder.
        rerank_top_n: number of chunks, the best so far, that a reranker scores; None scores every
            chunk, and finds chunks that share no word with the query; 0 disables the reranker.
        syntax: ``"plain"`` treats quotes, + and - as text. With ``"operators"`` a chunk must
            contain an ``"exact phrase"`` and a ``+word``, and must not contain a ``-word``, these
            two in any of their inflections; ``bridg*`` matches all words that begin so; see
            `relevance_gen.retrieval.query.operators`.
        correct_spelling: replace a word that no chunk has by another spelling that chunks have,
            such as ``dataset`` by ``data set``, or, if it has seven letters or more, by the most
            frequent word with the same first letter at edit distance 1;
            ``response.metadata.corrections`` lists the replacements.

    Raises:
        InvalidRequestError: an option is invalid; `where` and `distinct` are checked against the
            chunks later.
    """

    query: str = _option(NOTHING, checks.not_blank, kw_only=False)
    top_n: int = _option(10, checks.integer(1), kw_only=False)
    true_order: bool = _option(True, checks.flag, kw_only=False)
    where: Where | None = field(default=None, kw_only=True)
    min_relative_score: float = _option(0.0, checks.number(0, 1), checks.as_float)
    distinct: str | GroupKeys | None = _option(None, _IS_GROUP_KEY)  # noqa: RUF009 - immutable
    fill: bool = _option(False, checks.flag)
    neighbors: int | Neighborhood = _option(0, _IS_NEIGHBORHOOD)  # noqa: RUF009 - immutable
    spans: bool = _option(False, checks.flag)
    num_candidates: int | None = _option(DEFAULT_NUM_CANDIDATES, checks.optional_count)
    rerank_top_n: int | None = _option(DEFAULT_RERANK_TOP_N, checks.optional_count)
    syntax: Syntax = _option("plain", checks.one_of(*get_args(Syntax)))  # noqa: RUF009 - a Literal
    correct_spelling: bool = _option(True, checks.flag)

    def __attrs_post_init__(self) -> None:
        """Convert and validate the options that differ from their defaults."""
        for option in fields(SearchParams):
            value = getattr(self, option.name)
            if value is option.default or not option.metadata:
                continue
            value = option.metadata["convert"](value)
            option.metadata["rule"].check(option.name, value)
            object.__setattr__(self, option.name, value)

    def parse(self, *, inflects: bool, is_english: bool = True) -> Query:
        """Return the parsed query, without the words excluded with ``-``.

        With `syntax` ``"plain"`` no word is excluded, and the query has no operators. The arguments
        are as for the function `relevance_gen.retrieval.query.parsing.parse`.

        Raises:
            InvalidRequestError: the operators have more than `MAX_OPERATOR_WORDS` words, or the
                query has more than `MAX_OPERATOR_WORDS` prefixes.
        """
        if self.syntax == "plain":
            query = parse(self.query, inflects=inflects, is_english=is_english)
        else:
            parsed = parse_operators(self.query, inflects=inflects)
            query = parse(parsed.text, inflects=inflects, is_english=is_english)
            prefixes = find_prefixes(parsed.text)
            if prefixes:
                query = with_prefixes(query, prefixes)
            query = evolve(query, operators=parsed.operators)
        if query.operators or query.prefixes or not (self.correct_spelling and inflects):
            query = evolve(query, is_correctable=False)
        return query


def search_params(query: object, **options: Any) -> SearchParams | list[SearchParams]:
    """Return the parameters of one search, or a list with those of several searches.

    If `query` is a list, a tuple, an array or an iterator, each of its elements is the query of one
    search, and the result is a list. All searches have the same `options`.

    Raises:
        InvalidRequestError: an option is invalid; the error names the index of an invalid query, as
            in ``query[3]``.
    """
    queries = checks.as_list(query)
    if not isinstance(queries, list | tuple | Iterator):
        return SearchParams(queries, **options)
    several = []
    for i, each_query in enumerate(queries):
        try:
            several.append(SearchParams(each_query, **options))
        except InvalidRequestError as error:
            raise error.with_field(
                f"query[{i}]" if error.field == "query" else error.field
            ) from None
    return several


class ExplainOptions(TypedDict, total=False):
    """Types of the options of an explanation; see `SearchParams` and `SearchModels`."""

    neighbors: int
    encoder: TextEncoder | None
    num_candidates: int | None
    reranker: TextReranker | None
    rerank_top_n: int | None
    syntax: Syntax
    correct_spelling: bool


class SearchOptions(TypedDict, total=False):
    """Types of the options of a search; see `SearchParams` and `SearchModels`."""

    where: Where | None
    min_relative_score: float
    distinct: str | None
    fill: bool
    neighbors: int
    spans: bool
    encoder: TextEncoder | None
    num_candidates: int | None
    reranker: TextReranker | None
    rerank_top_n: int | None
    syntax: Syntax
    correct_spelling: bool


class IndexSearchOptions(SearchOptions, total=False):
    """Types of the options of a search of an index, for type checkers."""

    allow_partial: bool


def _model_with(class_name: str, method: str) -> Any:
    """Return a validator of an attribute that must be None or a model with the method `method`.

    The validator raises an `InvalidRequestError` for any other value. The error names the class,
    which `class_name` contains with its article.
    """

    def check(_: Any, attribute: Attribute[Any], model: Any) -> None:
        is_model = callable(getattr(model, method, None)) and not isinstance(model, str)
        if model is not None and not is_model:
            remedy = f"make one: {class_name.split()[1]}(path)"
            raise InvalidRequestError.must_be(
                attribute.name, f"{class_name} or None", model, remedy=remedy
            )

    return check


@frozen
class SearchModels:
    """The models that a search uses in addition to terms.

    Args:
        encoder: an `Encoder`, which raises the scores of chunks whose meaning is similar to the
            query's; None ranks by terms only. An index of a cluster accepts none.
        reranker: a `Reranker`, which reads the best chunks together with the query, and ranks them
            again; None uses no reranker.

    Raises:
        InvalidRequestError: a model is invalid.
    """

    encoder: TextEncoder | None = field(default=None, validator=_model_with("an Encoder", "encode"))
    reranker: TextReranker | None = field(
        default=None, validator=_model_with("a Reranker", "score")
    )

    def rerank_stages(
        self, params: SearchParams, between: Sequence[RerankStage] = ()
    ) -> tuple[RerankStage, ...]:
        """Return the rerank stages of one search.

        Their order is: neighbors, encoder, the stages `between`, reranker. Stages that the options
        or the models of the search do not require are left out.

        Raises:
            InvalidRequestError: ``num_candidates`` is None without an encoder, or ``rerank_top_n``
                is None without a reranker: None requires that the model scores every chunk.
        """
        if params.num_candidates is None and self.encoder is None:
            raise _missing_model("num_candidates", "encoder")
        if params.rerank_top_n is None and self.reranker is None:
            raise _missing_model("rerank_top_n", "reranker")
        stages = list(between)
        if self.encoder is not None:
            stages.insert(0, DenseFusion(self.encoder, params.num_candidates))
        if self.reranker is not None:
            stages.append(CrossEncoderRerank(self.reranker, params.rerank_top_n))
        if isinstance(params.neighbors, Neighborhood):
            stages.insert(0, NeighborLending(params.neighbors))
        elif params.neighbors:
            stages.insert(0, NeighborLending(Neighborhood(params.neighbors)))
        return tuple([stage for stage in stages if stage.n_candidates != 0])


def _missing_model(option: str, model: str) -> InvalidRequestError:
    return InvalidRequestError.must_be(
        option,
        f"an integer unless {model} is passed",
        None,
        remedy=f"pass {model}, or leave it out",
    )


NO_MODELS: Final = SearchModels()


@cache
def _option_names(function: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of the parameters of a function with the decorator `with_options`."""
    parameters = inspect.signature(function).parameters
    return tuple([name for name in parameters if name not in ("self", "options")])


def check_option_names(names: Iterable[str], function: Callable[..., object]) -> None:
    """Raise an error for a keyword argument that a function does not have.

    Args:
        names: the names of the keyword arguments.
        function: the function, with the decorator `with_options`.

    Raises:
        InvalidRequestError: a name is unknown; the error suggests the nearest option.
    """
    known = _option_names(function)
    for name in names:
        if name not in known:
            raise unknown_option(name, known)


def unknown_option(name: str, known: Sequence[str]) -> InvalidRequestError:
    """Return the error for an unknown option, which suggests the nearest of the known options."""
    remedy = did_you_mean(name, known, f"the options are {', '.join(known)}")
    return InvalidRequestError("is not a known option", name, remedy=remedy)


def take_models(options: dict[str, Any]) -> SearchModels:
    """Remove ``encoder`` and ``reranker`` from `options`, which is changed, and return them.

    A missing key counts as None: no model.
    """
    encoder, reranker = options.pop("encoder", None), options.pop("reranker", None)
    if encoder is None and reranker is None:
        return NO_MODELS
    return SearchModels(encoder, reranker)


def with_options(
    options_class: type, without: tuple[str, ...] = ()
) -> Callable[[Function], Function]:
    """Return a decorator for functions whose keyword arguments are the options of a class.

    The last parameter of such a function is ``**options: Unpack[C]``, where C is `options_class` or
    a subclass of it. The decorator adds each option of `options_class` to ``__signature__`` as a
    keyword-only parameter, and replaces the entry ``options:`` in the docstring by the
    documentation of these options. If C is `options_class`, ``**options`` is removed from the
    signature; if C is a subclass, it remains as the last parameter.

    Args:
        options_class: a typed dictionary whose keys are the names of the options.
        without: names of options that are not shown.
    """
    annotations = dict(options_class.__annotations__)
    for name in without:
        del annotations[name]

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        *parameters, options = signature.parameters.values()
        attributes = fields_dict(SearchParams) | fields_dict(SearchModels)
        for name, annotation in annotations.items():
            parameter = inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=attributes[name].default if name in attributes else False,
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            parameters.append(parameter)
        if options.annotation != f"Unpack[{options_class.__name__}]":
            parameters.append(options)
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        if function.__doc__:
            document = partial(_document, annotations)
            function.__doc__ = _PLACEHOLDER.sub(document, function.__doc__)
        return function

    return decorate


def _document(names: Iterable[str], placeholder: re.Match[str]) -> str:
    """Return the documentation of options, with the indentation of the placeholder.

    It is read from the docstrings of `SearchParams` and `SearchModels`; that of ``allow_partial``
    is a constant.
    """
    documentation = {"allow_partial": ALLOW_PARTIAL}
    for documented in (SearchParams, SearchModels):
        documentation |= _ENTRY.findall(documented.__doc__ or "")
    entries = ""
    indent = placeholder[1]
    for name in names:
        lines = map(str.strip, documentation[name].splitlines())
        entries += f"\n{indent}{name}: " + f"\n{indent}    ".join(lines)
    return entries
