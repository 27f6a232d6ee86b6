"""The table of a model's options."""

import attrs
import pytest

from relevance_gen.llama.options import ModelOptions, OptionTypes, model_options


def test_type_checkers_know_the_options_as_they_are():
    """`OptionTypes` has every option of `ModelOptions`, with its type."""
    assert OptionTypes.__annotations__.keys() == {option.name for option in attrs.fields(ModelOptions)}
    for option in attrs.fields(ModelOptions):
        assert OptionTypes.__annotations__[option.name].__forward_arg__ == option.type


def test_every_option_says_what_it_means():
    """Each has a help text for flags and docstrings, without a full stop, for the flags put more behind it."""
    for option in attrs.fields(ModelOptions):
        assert option.metadata["help"].strip(".") == option.metadata["help"] != ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [("n_context", r"did you mean n_ctx\?"), ("slots", r"did you mean n_slots\?"), ("x", "there are n_ctx")],
)
def test_an_unknown_option_is_refused_with_the_nearest(name, hint):
    """The error names the option and the one that may be meant, or else all."""
    with pytest.raises(TypeError, match=f"{name} is no option of a model; {hint}"):
        model_options({name: 1})
