"""Which model is meant."""

from pathlib import Path

import pytest

from relevance_gen.errors import InvalidRequestError, ModelLoadError
from relevance_gen.llama.model_files.resolve import is_embedded, resolve
from small_models import TINY


def test_a_path_is_itself():
    """An existing file is taken as it is."""
    assert resolve(TINY) == resolve(str(TINY)) == TINY


def test_the_environment_names_the_default(tmp_path):
    """RELEVANCE_GEN_MODEL wins over the embedded model; empty means unset."""
    embedded = tmp_path / "embedded.gguf"
    embedded.touch()
    assert resolve(environment={"RELEVANCE_GEN_MODEL": str(TINY)}, embedded=embedded) == TINY
    assert resolve(environment={"RELEVANCE_GEN_MODEL": ""}, embedded=embedded) == embedded
    assert resolve(environment={}, embedded=embedded) == embedded
    assert is_embedded(None, {})
    assert is_embedded(None, {"RELEVANCE_GEN_MODEL": ""})
    assert not is_embedded(None, {"RELEVANCE_GEN_MODEL": str(TINY)})
    assert not is_embedded(TINY, {})


def test_without_any_model_the_error_says_what_to_do(tmp_path):
    """No path, no variable, no embedded model: the message names the variable."""
    with pytest.raises(ModelLoadError, match="set RELEVANCE_GEN_MODEL"):
        resolve(environment={}, embedded=tmp_path / "none.gguf")


@pytest.mark.parametrize(
    "named", [{"model": "none"}, {"environment": {"RELEVANCE_GEN_MODEL": "none"}}]
)
def test_the_servers_word_for_no_model_says_what_to_do(tmp_path, monkeypatch, named):
    """`none` asks for search alone: whoever wants to generate is told how, though a file of that name be there."""
    monkeypatch.chdir(tmp_path)
    Path("none").touch()
    with pytest.raises(ModelLoadError, match="unset RELEVANCE_GEN_MODEL for the embedded model"):
        resolve(**named)


def test_an_empty_path_is_not_the_working_folder():
    """It is refused by its name."""
    with pytest.raises(InvalidRequestError, match="model must be the path of a file, got ''"):
        resolve("")


def test_what_is_neither_a_file_nor_a_repository_does_not_exist():
    """A path that leads nowhere is an error that names it."""
    with pytest.raises(ModelLoadError, match=r"/no/such/model\.gguf does not exist"):
        resolve("/no/such/model.gguf")
