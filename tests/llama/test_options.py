"""The table of a model's options."""

import typing

import attrs
import pytest

from relevance_gen.llama.options import ModelOptions, OptionTypes, model_options


def test_type_checkers_know_the_options_as_they_are():
    """`OptionTypes` has every option of `ModelOptions`, with its type."""
    options = attrs.fields(attrs.resolve_types(ModelOptions))
    assert typing.get_type_hints(OptionTypes) == {option.name: option.type for option in options}


def test_every_option_says_what_it_means():
    """Each has a help text for flags and docstrings, without a full stop, for the flags put more behind it."""
    for option in attrs.fields(ModelOptions):
        assert option.metadata["help"].strip(".") == option.metadata["help"] != ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("n_context", r"did you mean n_ctx\?"),
        ("slots", r"did you mean n_slots\?"),
        ("x", "the options are n_ctx"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(name, hint):
    """The error names the option and the one that may be meant, or else all."""
    with pytest.raises(TypeError, match=f"{name} is not a model option; {hint}"):
        model_options({name: 1})
