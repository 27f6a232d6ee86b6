"""Tests of ``relevance-gen generate``: prompts, options and output."""

import io
import json

import attrs
import pytest

from relevance_gen.cli import main
from relevance_gen.cli.generate import _PARAMETERS
from relevance_gen.llama.options import ModelOptions
from relevance_gen.types import GenerationRequest
from small_models import BIGRAM, STORY

COMMAND = [
    "generate",
    "--model",
    str(BIGRAM),
    "--n-threads",
    "1",
    "--temperature",
    "0",
    "--max-tokens",
    "12",
]


def test_generate_prints_completion(capsys):
    """The completion is printed to the standard output, and the standard error is empty."""
    assert main([*COMMAND, "z"]) == 0
    assert capsys.readouterr() == (STORY + "\n", "")


def test_generate_with_embedded_model_prints_notice(capsys, monkeypatch):
    """Without a model name, one line on the standard error describes the embedded model."""
    monkeypatch.delenv("RELEVANCE_GEN_MODEL", raising=False)
    assert main(["generate", "Write a poem.", "--max-tokens", "2", "--n-threads", "1"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("relevance-gen: the small embedded model is used: it can only copy")
    assert said.count("\n") == 1


def test_generate_reads_prompt_from_stdin(capsys, monkeypatch):
    """Without a prompt, or with `-`, the standard input is the prompt."""
    monkeypatch.setattr("sys.stdin", io.StringIO("z"))
    assert main([*COMMAND, "-"]) == 0
    assert capsys.readouterr().out == STORY + "\n"


def test_generate_prints_heading_per_sample(capsys):
    """Several samples are printed under numbered headings."""
    main([*COMMAND, "z", "--num-samples", "3", "--stop", "caf"])
    assert capsys.readouterr().out == "".join(f"── {n} of 3 ──\nOnce upon a \n" for n in (1, 2, 3))


def test_generate_json_has_documented_fields(capsys):
    """`--json` prints one object with the documented fields."""
    main([*COMMAND, "z", "--json", "--return-tokens", "--logprobs"])
    response = json.loads(capsys.readouterr().out)
    (sample,) = response["responses"]
    assert (response["prompt"], sample["text"], sample["finish_reason"]) == ("z", STORY, "length")
    assert len(sample["tokens"]) == len(sample["logprobs"]) == sample["generated_tokens"] == 12


def test_generate_logit_bias_accepts_pairs(capsys):
    """`--logit-bias` accepts several ID=BIAS pairs; a value without a number is a usage error."""
    assert (
        main(
            [
                *COMMAND,
                "z",
                "--json",
                "--return-tokens",
                "--top-logprobs",
                "2",
                "--logit-bias",
                "4=100",
                "5=-3",
            ]
        )
        == 0
    )
    (sample,) = json.loads(capsys.readouterr().out)["responses"]
    assert set(sample["tokens"]) == {4}
    assert [len(place) for place in sample["top_logprobs"]] == [2] * 12
    with pytest.raises(SystemExit):
        main([*COMMAND, "z", "--logit-bias", "4"])


def test_generate_reads_schema_and_grammar_files(tmp_path, capsys):
    """`--schema` and `--grammar` name files, `--regex` is a pattern; unreadable files are errors."""
    (tmp_path / "schema").write_text('{"enum": [12, 34]}')
    (tmp_path / "grammar").write_text('start: "ab" "c"')
    for options, texts in (
        (["--schema", str(tmp_path / "schema")], {"12\n", "34\n"}),
        (["--grammar", str(tmp_path / "grammar")], {"abc\n"}),
        (["--regex", "[b]{3}"], {"bbb\n"}),
    ):
        assert main([*COMMAND, "z", *options]) == 0
        assert capsys.readouterr().out in texts
    for wrong in ("grammar", "nothing"):
        with pytest.raises(SystemExit):
            main([*COMMAND, "z", "--schema", str(tmp_path / wrong)])
        assert str(tmp_path / wrong) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-tokens", "20"], "--min-tokens must be at most --max-tokens (12), got 20"),
        (["--regex", "a", "--grammar", str(BIGRAM.with_name("make.py"))], "--grammar cannot be combined with --regex"),
        (["--n-ctx", "40", "--num-samples", "2"], "PROMPT is too long: 101 tokens > 39 maximum; shorten it, set "
         "--max-input-tokens, or load the model with a larger n_ctx"),
    ],
)  # fmt: skip
def test_generate_error_names_all_options_as_flags(capsys, options, message):
    """The error uses flag names for the invalid option and for each option in the message."""
    assert main([*COMMAND, "zz" * 50, *options]) == 2
    printed = capsys.readouterr()
    assert message.replace("n_ctx", "--n-ctx") in printed.err
    assert not printed.out


def test_generate_has_option_for_each_request_field():
    """Each field of `GenerationRequest` has an option."""
    assert {"text", *_PARAMETERS} == {field.name for field in attrs.fields(GenerationRequest)}


def test_generate_has_option_for_each_model_field(capsys):
    """Each field of `ModelOptions` has an option, switches can be negated, and values arrive."""
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    shown = capsys.readouterr().out
    for option in attrs.fields(ModelOptions):
        assert f"  --{option.name.replace('_', '-')}" in shown
    given = [
        "--n-ctx",
        "64",
        "--n-slots",
        "2",
        "--n-batch",
        "32",
        "--n-gpu-layers",
        "0",
        "--main-gpu",
        "0",
    ]
    assert main([*COMMAND, "z", *given, "--flash-attention", "--no-use-extra-bufts"]) == 0
    assert capsys.readouterr().out == STORY + "\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top-p", "2"], "--top-p must be a finite number in [0, 1], got 2.0"),
        (["--n-slots", "256"], "--n-slots must be an integer in [1, 255], got 256"),
        (["--n-ctx", "0"], "--n-ctx must be an integer of at least 1, got 0"),
        (
            ["--eos-token-ids", "0", "-1"],
            "--eos-token-ids[1] must be an integer in [0, 2147483647], got -1",
        ),
        (
            ["--model", "/no/such/model.gguf"],
            "the model file /no/such/model.gguf does not exist; pass the path of a GGUF file, or the name of a model on "
            "the Hugging Face hub, such as owner/name",
        ),
    ],
)
def test_generate_error_is_one_line(capsys, options, message):
    """An invalid value or a missing model gives status 2 and one line on the standard error."""
    assert main([*COMMAND, "z", *options]) == 2
    assert capsys.readouterr() == ("", f"relevance-gen: {message}\n")
