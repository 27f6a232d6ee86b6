"""`generate()`, in separate processes for tests of environment variables."""

import inspect
import subprocess
import sys
import typing
from pathlib import Path

import attrs
import numpy as np
import pytest

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation import generate
from relevance_gen.generation.queue.request import RequestFields
from relevance_gen.generation.runner import ChatOptions, Runner
from relevance_gen.types import GenerationRequest
from small_models import BIGRAM, STORY


def run(code, tmp_path, **environment):
    """Run Python code in a process whose environment is `environment`."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_generate_mapping_equals_request(bigram):
    """A mapping of the documented fields equals a request."""
    fields = {"text": "z", "max_tokens": 12, "temperature": 0}
    assert generate(fields, runner=bigram).responses[0].text == STORY
    assert generate(GenerationRequest(**fields), runner=bigram).responses[0].text == STORY


def test_generate_text_with_keywords_equals_request(bigram):
    """Keywords override the fields of a request or a mapping."""
    assert generate("z", max_tokens=12, temperature=0, runner=bigram).responses[0].text == STORY
    assert (
        generate(text="z", max_tokens=12, temperature=0, runner=bigram).responses[0].text == STORY
    )
    for request in (
        {"text": "z", "temperature": 1},
        GenerationRequest("z", temperature=1, max_tokens=3),
    ):
        assert (
            generate(request, max_tokens=12, temperature=0, runner=bigram).responses[0].text
            == STORY
        )
    assert generate(
        np.str_("z"), max_tokens=np.int64(12), temperature=np.float32(0), runner=bigram
    ).responses


@pytest.mark.parametrize(
    ("request_", "fields", "message"),
    [
        ("a", {"max_token": 3}, "did you mean max_tokens"),
        (
            "a",
            {"model": "a.gguf"},
            "model is an option of Runner, not a field of a request: create a Runner with it, and pass runner=",
        ),
        (
            "a",
            {"n_ctx": 8},
            "n_ctx is an option of Runner, not a field of a request: create a Runner with it",
        ),
        ("a", {"max_tokens": 0}, "max_tokens must be an integer of at least 1"),
        (None, {}, "text is required"),
        (None, {"max_tokens": 3}, "text is required"),
        (
            ["a"],
            {"max_tokens": 3},
            "request must be a text, a GenerationRequest or a mapping of its fields, got a list",
        ),
    ],
)
def test_generate_unknown_keyword_raises(request_, fields, message):
    """An unknown or invalid keyword raises the same error as a field."""
    with pytest.raises(InvalidRequestError, match=message):
        generate(request_, **fields)


def test_generate_invalid_runner_raises():
    """The error names the value and how to create a runner."""
    with pytest.raises(
        InvalidRequestError, match=r"runner must be a Runner or None, got 'model\.gguf'; make one"
    ):
        generate("a", runner="model.gguf")


@pytest.mark.parametrize(
    "request_", [{}, {"text": 1}, {"text": "a", "top_p": 2}, {"text": "a", "topp": 1}, [], None]
)
def test_generate_invalid_request_raises_before_loading(request_):
    """The fields are checked first: no runner is created for an invalid request."""
    with pytest.raises(InvalidRequestError):
        generate(request_)


def test_default_runner_uses_model_of_environment(tmp_path):
    """RELEVANCE_GEN_MODEL is loaded at the first call and used until closed; nothing is printed, and the process ends."""
    code = """
from relevance_gen.generation import api
request = {"text": "z", "max_tokens": 12, "temperature": 0}
print(api.generate(request).responses[0].text)
assert api.default_runner() is api.default_runner()
api.default_runner().close()
api.generate(request)
"""
    ended = run(code, tmp_path, RELEVANCE_GEN_MODEL=str(BIGRAM))
    assert (ended.stdout, ended.returncode) == (STORY + "\n", 0), ended.stderr


def test_generate_without_model_raises(tmp_path):
    """If RELEVANCE_GEN_MODEL disables generation, `generate` and `Runner` raise errors with a remedy."""
    code = """
import relevance_gen
for ask in (lambda: relevance_gen.generate({"text": "a"}), relevance_gen.Runner):
    try:
        ask()
    except relevance_gen.ModelLoadError as error:
        print("unset RELEVANCE_GEN_MODEL" in str(error))
"""
    assert run(code, tmp_path, RELEVANCE_GEN_MODEL="none").stdout == "True\nTrue\n"


def test_import_loads_no_model_library(tmp_path):
    """`import relevance_gen.generation` does not import llama_cpp, which the first runner imports."""
    ended = run("import sys, relevance_gen.generation; print('llama_cpp' in sys.modules)", tmp_path)
    assert ended.stdout == "False\n"


def test_process_exit_with_busy_runner_ends(tmp_path):
    """An open runner with a running request does not delay the end of the process."""
    code = f"""
import atexit
from relevance_gen.generation import Runner
atexit.register(lambda: print(*(worker.thread.is_alive() for worker in runner._workers)))
from relevance_gen.types import GenerationRequest
runner = Runner({str(BIGRAM)!r}, n_ctx=512)
runner.submit(GenerationRequest("a", max_tokens=10**9, num_samples=200))
"""
    ended = run(code, tmp_path)
    assert (ended.stdout, ended.returncode) == ("False\n", 0), ended.stderr


def test_example_generates(tmp_path):
    """examples/generate.py generates with the model in its argument."""
    example = Path(__file__).parents[2] / "examples" / "generate.py"
    ended = run(
        f"import runpy, sys; sys.argv[1:] = [{str(BIGRAM)!r}]; runpy.run_path({str(example)!r})",
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    assert "tokens in" in ended.stdout


def test_field_types_have_all_fields() -> None:
    """The types for keyword arguments have the fields of the request and of `Runner.submit_chat`."""
    fields = set(attrs.fields_dict(GenerationRequest))
    assert set(typing.get_type_hints(RequestFields)) == fields
    parameters = inspect.signature(Runner.submit_chat).parameters.values()
    options = {
        parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    } - {"on_part"}
    assert set(ChatOptions.__annotations__) - fields == options
