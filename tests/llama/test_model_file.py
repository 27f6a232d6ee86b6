"""Resolving the name of a model to a file."""

from pathlib import Path

import pytest

from relevance_gen.errors import InvalidRequestError, ModelLoadError
from relevance_gen.llama.model_files.resolve import is_embedded, resolve
from small_models import TINY

RESOLVE = "relevance_gen.llama.model_files.resolve"


def test_resolve_existing_path_returns_it():
    """An existing file is returned unchanged."""
    assert resolve(TINY) == resolve(str(TINY)) == TINY


def test_resolve_none_uses_the_environment_variable(tmp_path, monkeypatch):
    """RELEVANCE_GEN_MODEL takes precedence over the embedded model; an empty value is ignored."""
    embedded = tmp_path / "embedded.gguf"
    embedded.touch()
    monkeypatch.setattr(f"{RESOLVE}.EMBEDDED_MODEL", embedded)
    monkeypatch.delenv("RELEVANCE_GEN_MODEL", raising=False)
    assert resolve() == embedded
    assert is_embedded(None)
    assert not is_embedded(TINY)
    monkeypatch.setenv("RELEVANCE_GEN_MODEL", "")
    assert resolve() == embedded
    assert is_embedded(None)
    monkeypatch.setenv("RELEVANCE_GEN_MODEL", str(TINY))
    assert resolve() == TINY
    assert not is_embedded(None)


def test_resolve_without_any_model_names_the_variable(tmp_path, monkeypatch):
    """Without path, variable and embedded model, the error names the variable."""
    monkeypatch.setattr(f"{RESOLVE}.EMBEDDED_MODEL", tmp_path / "none.gguf")
    monkeypatch.delenv("RELEVANCE_GEN_MODEL", raising=False)
    with pytest.raises(ModelLoadError, match="set RELEVANCE_GEN_MODEL"):
        resolve()


@pytest.mark.parametrize("model", ["none", None])
def test_resolve_none_string_explains_how_to_generate(tmp_path, monkeypatch, model):
    """The name "none" disables generation, also if a file of that name exists."""
    monkeypatch.chdir(tmp_path)
    Path("none").touch()
    monkeypatch.setenv("RELEVANCE_GEN_MODEL", "none")
    with pytest.raises(ModelLoadError, match="unset RELEVANCE_GEN_MODEL for the embedded model"):
        resolve(model)


def test_resolve_empty_path_is_rejected():
    """The error names the field."""
    with pytest.raises(InvalidRequestError, match="model must be the path of a file, got ''"):
        resolve("")


def test_resolve_missing_path_names_it():
    """A missing path is an error that names it."""
    with pytest.raises(ModelLoadError, match=r"/no/such/model\.gguf does not exist"):
        resolve("/no/such/model.gguf")
