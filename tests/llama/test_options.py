"""The table of model options."""

import typing

import attrs
import pytest

from relevance_gen.llama.options import ModelOptions, OptionTypes, model_options


def test_option_types_equal_model_options():
    """`OptionTypes` has all options of `ModelOptions` with their types."""
    options = attrs.fields(attrs.resolve_types(ModelOptions))
    assert typing.get_type_hints(OptionTypes) == {option.name: option.type for option in options}


def test_options_have_help_texts():
    """Each option has a help text without a full stop, because flags append to it."""
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
def test_unknown_option_suggests_the_nearest(name, hint):
    """The error names the option and the nearest option, or lists all options."""
    with pytest.raises(TypeError, match=f"{name} is not a model option; {hint}"):
        model_options({name: 1})
