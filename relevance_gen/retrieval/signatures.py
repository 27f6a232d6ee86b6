"""Show the options of `SearchParams` in signatures and docstrings of functions with them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from attrs import NOTHING, fields_dict

from relevance_gen.retrieval.params import SearchModels, SearchParams

Function = TypeVar("Function", bound=Callable[..., Any])

_PLACEHOLDER: Final = re.compile(r"\n( +)options: [^\n]*(?=\n)")
_ENTRY: Final = re.compile(r"^        (\w+): (.*(?:\n {12}.*)*)", re.MULTILINE)
ALLOW_PARTIAL: Final = (
    "in a cluster, search the available shards while others are lost;\n"
    "            ``response.metadata.num_missing_chunks`` is the number of chunks that were not searched."
)


def _documentation() -> dict[str, str]:
    """Return the documentation of each option by name.

    The documentation is read from the docstrings of `SearchParams` and `SearchModels`; that of
    ``allow_partial`` is a constant.
    """
    entries = dict(_ENTRY.findall(SearchParams.__doc__ or ""))
    entries |= dict(_ENTRY.findall(SearchModels.__doc__ or ""))
    return entries | {"allow_partial": ALLOW_PARTIAL}


def _default_of(name: str) -> Any:
    if name == "allow_partial":
        return False
    attribute = (fields_dict(SearchParams) | fields_dict(SearchModels))[name]
    return inspect.Parameter.empty if attribute.default is NOTHING else attribute.default


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

    def decorate(function: Function) -> Function:
        annotations = dict(options_class.__annotations__)
        for name in without:
            del annotations[name]
        signature = inspect.signature(function)
        *parameters, options = signature.parameters.values()
        for name in annotations:
            parameter = inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default_of(name),
                annotation=getattr(annotations[name], "__forward_arg__", annotations[name]),
            )
            parameters.append(parameter)
        if options.annotation != f"Unpack[{options_class.__name__}]":
            parameters.append(options)
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        if function.__doc__:
            documentation = _documentation()
            placeholder = _PLACEHOLDER.search(function.__doc__)
            if placeholder is not None:
                indent = placeholder[1]
                entries = []
                for name in annotations:
                    lines = [line.strip() for line in documentation[name].splitlines()]
                    text = f"\n{indent}    ".join(lines)
                    entries.append(f"\n{indent}{name}: {text}")
                before = function.__doc__[: placeholder.start()]
                after = function.__doc__[placeholder.end() :]
                function.__doc__ = before + "".join(entries) + after
        return function

    return decorate
