"""Which model is meant."""

from pathlib import Path

import pytest

from relevance_gen.errors import ModelLoadError
from relevance_gen.llama.source import choose_file, resolve
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


def test_without_any_model_the_error_says_what_to_do(tmp_path):
    """No path, no variable, no embedded model: the message names the variable."""
    with pytest.raises(ModelLoadError, match="set RELEVANCE_GEN_MODEL"):
        resolve(environment={}, embedded=tmp_path / "none.gguf")


@pytest.mark.parametrize("named", [{"model": "none"}, {"environment": {"RELEVANCE_GEN_MODEL": "none"}}])
def test_the_servers_word_for_no_model_says_what_to_do(tmp_path, monkeypatch, named):
    """`none` asks for search alone: whoever wants to generate is told how, though a file of that name be there."""
    monkeypatch.chdir(tmp_path)
    Path("none").touch()
    with pytest.raises(ModelLoadError, match="unset RELEVANCE_GEN_MODEL for the embedded model"):
        resolve(**named)


def test_what_is_neither_a_file_nor_a_repository_does_not_exist():
    """A path that leads nowhere is an error that names it."""
    with pytest.raises(ModelLoadError, match=r"/no/such/model\.gguf does not exist"):
        resolve("/no/such/model.gguf")


def test_a_repository_needs_the_hub_client():
    """owner/name without huggingface_hub is an error that says what to install."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        with pytest.raises(ModelLoadError, match="pip install huggingface_hub"):
            resolve("owner/name")
    else:
        pytest.skip("huggingface_hub is installed here, and tests do not use the network")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["README.md", "m-q8_0.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
        (["m-f16.gguf", "m-Q8_0.gguf"], "m-Q8_0.gguf"),
        (["b.gguf", "a.gguf"], "a.gguf"),
    ],
)
def test_the_file_of_a_repository_is_the_one_most_people_want(names, chosen):
    """Q4_K_M, then Q8_0, then the first by name."""
    assert choose_file(names) == chosen


def test_a_repository_without_gguf_files_is_an_error():
    """There must be something to load."""
    with pytest.raises(ModelLoadError, match="no GGUF file"):
        choose_file(["model.safetensors"])
