"""`generate()`, in processes of its own where the environment matters."""

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
    """Run Python code in a process with nothing but `environment`."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_request_and_a_mapping_are_the_same(bigram):
    """A mapping of the documented fields is a request."""
    fields = {"text": "z", "max_tokens": 12, "temperature": 0}
    assert generate(fields, runner=bigram).responses[0].text == STORY
    assert generate(GenerationRequest(**fields), runner=bigram).responses[0].text == STORY


def test_a_text_and_keywords_are_a_request(bigram):
    """A text with fields as keywords is a request; keywords go before the fields of a request or a mapping."""
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
            "model is no field of a request: make a Runner with it, and pass runner=",
        ),
        ("a", {"n_ctx": 8}, "n_ctx is no field of a request: make a Runner with it"),
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
def test_wrong_keywords_are_refused_by_name(request_, fields, message):
    """A keyword that is no field, or not allowed, is refused as a field is."""
    with pytest.raises(InvalidRequestError, match=message):
        generate(request_, **fields)


def test_what_is_no_runner_is_refused():
    """The error names it and says how to make one."""
    with pytest.raises(
        InvalidRequestError, match=r"runner must be a Runner or None, got 'model\.gguf'; make one"
    ):
        generate("a", runner="model.gguf")


@pytest.mark.parametrize(
    "request_", [{}, {"text": 1}, {"text": "a", "top_p": 2}, {"text": "a", "topp": 1}, [], None]
)
def test_a_wrong_request_is_refused_before_a_model_is_needed(request_):
    """The fields are checked first: no runner is made for a request that cannot be served."""
    with pytest.raises(InvalidRequestError):
        generate(request_)


def test_the_default_runner_has_the_model_of_the_environment(tmp_path):
    """RELEVANCE_GEN_MODEL is loaded when called for and kept until closed; nothing is printed, and the process ends."""
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


def test_without_a_model_generating_is_refused(tmp_path):
    """Where RELEVANCE_GEN_MODEL says that there is none, `generate` and `Runner` say in their error what to do."""
    code = """
import relevance_gen
for ask in (lambda: relevance_gen.generate({"text": "a"}), relevance_gen.Runner):
    try:
        ask()
    except relevance_gen.ModelLoadError as error:
        print("unset RELEVANCE_GEN_MODEL" in str(error))
"""
    assert run(code, tmp_path, RELEVANCE_GEN_MODEL="none").stdout == "True\nTrue\n"


def test_importing_generation_loads_no_model_library(tmp_path):
    """`import relevance_gen.generation` is light: llama_cpp comes with the first runner."""
    ended = run("import sys, relevance_gen.generation; print('llama_cpp' in sys.modules)", tmp_path)
    assert ended.stdout == "False\n"


def test_a_process_may_end_while_a_runner_is_busy(tmp_path):
    """Leaving a runner open, with a request running, ends its thread before the interpreter ends, and does not hang."""
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


def test_the_example_runs(tmp_path):
    """examples/generate.py generates with the model that it is given."""
    example = Path(__file__).parents[2] / "examples" / "generate.py"
    ended = run(
        f"import runpy, sys; sys.argv[1:] = [{str(BIGRAM)!r}]; runpy.run_path({str(example)!r})",
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    assert "tokens in" in ended.stdout


def test_the_types_of_fields_name_every_field() -> None:
    """What type checkers know of keyword arguments is what the request and `Runner.submit_chat` take."""
    fields = set(attrs.fields_dict(GenerationRequest))
    assert set(typing.get_type_hints(RequestFields)) == fields
    parameters = inspect.signature(Runner.submit_chat).parameters.values()
    options = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY} - {"on_part"}
    assert set(ChatOptions.__annotations__) - fields == options
