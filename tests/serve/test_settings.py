"""Settings: one table, from flags and environment."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.generation.runner import DEFAULT_MAX_QUEUE, DEFAULT_PREFIX_CACHE_BYTES
from relevance_gen.llama.options import ModelOptions
from relevance_gen.serve.flags import SETTINGS, describe_default, read
from relevance_gen.serve.settings import Settings


def refusal(capsys: pytest.CaptureFixture[str], argv: list[str], environ: dict[str, str]) -> str:
    """Return the one line with which settings are refused."""
    with pytest.raises(SystemExit) as ended:
        read(argv, environ)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("relevance-gen serve: ")
    assert line.endswith("; see --help")
    return line


def test_settings_have_documented_names_and_defaults() -> None:
    """Host, port and model have the names and defaults that clients and scripts rely on."""
    assert (read([], {}).host, read([], {}).port, read([], {}).model) == ("127.0.0.1", 8000, ())
    flags = ["--host", "0.0.0.0", "--port", "9000", "--model", "a.gguf"]  # noqa: S104
    environ = {
        "RELEVANCE_GEN_HOST": "0.0.0.0",  # noqa: S104
        "RELEVANCE_GEN_PORT": "9000",
        "RELEVANCE_GEN_MODEL": "a.gguf",
    }
    assert read(flags, {}) == read([], environ)
    assert read(flags, {}).port == 9000


def test_devices_are_numbers_separated_by_commas(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers of GPUs are read from the flag or the variable; other text is an error."""
    assert read(["--devices", "0,2"], {}).devices == (0, 2)
    assert read([], {"RELEVANCE_GEN_DEVICES": "1"}).devices == (1,)
    assert "--devices must be numbers of GPUs" in refusal(capsys, ["--devices", "all"], {})


def test_flag_overrides_environment() -> None:
    """Precedence: flag, then environment, then default."""
    environ = {"RELEVANCE_GEN_PORT": "1", "RELEVANCE_GEN_WORKERS": "2"}
    settings = read(["--port=3"], environ)
    assert (settings.port, settings.workers, settings.search_queue) == (
        3,
        2,
        Settings().search_queue,
    )


def test_empty_variable_is_unset_and_empty_flag_is_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An empty environment variable counts as unset, as for `generate`; an empty flag is an error."""
    environ = {setting.variable: "" for setting in SETTINGS}
    assert read([], environ) == Settings()
    assert "--model must be a GGUF file, owner/name of the hub, or NAME=FILE" in refusal(
        capsys, ["--model="], {}
    )


def test_settings_have_flag_variable_and_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """--help explains every setting and exits with 0."""
    with pytest.raises(SystemExit) as ended:
        read(["--help"], {})
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for setting in SETTINGS:
        assert f"{setting.flag} VALUE" in text
        assert setting.help.split()[0] in text
    assert "RELEVANCE_GEN_API_KEYS" in text


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_body_bytes", "64MiB", 64 << 20),
        ("max_body_bytes", "10 kB", 10_000),
        ("index_cache_bytes", "0", 0),
        ("access_log", "off", False),
        ("generation_requires_key", "TRUE", True),
        ("cors_origins", "http://a, http://b,", ("http://a", "http://b")),
        ("rate_limit", "5/10minute", "5/10minute"),
        ("rate_limit", "off", "off"),
        ("drain_timeout_s", "0.5", 0.5),
    ],
)
def test_values_are_parsed(name: str, text: str, value: object) -> None:
    """Sizes, switches, lists, rates and seconds are written as people write them."""
    assert getattr(read([f"--{name.replace('_', '-')}={text}"], {}), name) == value
    assert getattr(read([], {f"RELEVANCE_GEN_{name.upper()}": text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("n_gpu_layers", "-1", -1),
        ("n_slots", "3", 3),
        ("flash_attention", "on", True),
        ("use_extra_bufts", "0", False),
    ],
)
def test_options_of_a_model_are_settings(name: str, text: str, value: object) -> None:
    """Every field of `ModelOptions` is a flag and a variable with its own default, and is checked by its validator."""
    assert set(attrs.fields_dict(ModelOptions)) == {
        setting.attribute.name for setting in SETTINGS if setting.is_option
    }
    expected = attrs.evolve(ModelOptions(), **{name: value})
    assert read([f"--{name.replace('_', '-')}={text}"], {}).model_options == expected
    assert read([], {f"RELEVANCE_GEN_{name.upper()}": text}).model_options == expected
    assert read([], {}).model_options == ModelOptions()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("port", "eighty", "an integer in [0, 65535]"),
        ("port", "65536", "an integer in [0, 65535]"),
        ("port", "٣", "an integer"),
        ("workers", "0", "[1, 256]"),
        ("max_body_bytes", "64XB", "a size"),
        ("access_log", "maybe", "on or off"),
        ("drain_timeout_s", "nan", "above 0"),
        ("drain_timeout_s", "-1", "above 0"),
        ("rate_limit", "fast", "a count per time"),
        ("rate_limit", "0/minute", "a count per time"),
        ("log_format", "xml", "json, text"),
        ("n_ctx", "0", "an integer of at least 1"),
        ("n_slots", "many", "an integer in [1, 255]"),
        ("n_gpu_layers", "-2", "an integer of at least -1"),
        ("flash_attention", "maybe", "on or off"),
        ("max_queue", "0", "an integer of at least 1"),
    ],
)
def test_invalid_setting_is_rejected(
    capsys: pytest.CaptureFixture[str], name: str, text: str, says: str
) -> None:
    """The error contains the flag or the variable, the rule, and the value."""
    flag, variable = f"--{name.replace('_', '-')}", f"RELEVANCE_GEN_{name.upper()}"
    for line, source in (
        (refusal(capsys, [f"{flag}={text}"], {}), flag),
        (refusal(capsys, [], {variable: text}), variable),
    ):
        assert f"{source} must be" in line
        assert says in line


def test_unknown_settings_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt flag or variable is refused, with the nearest known one suggested; so are abbreviations."""
    assert "did you mean --workers?" in refusal(capsys, ["--worker", "2"], {})
    assert "--port" in refusal(capsys, ["--por", "2"], {})
    assert "did you mean RELEVANCE_GEN_PORT?" in refusal(capsys, [], {"RELEVANCE_GEN_PROT": "1"})
    assert "stray" in refusal(capsys, ["stray"], {})
    assert "RELEVANCE_GEN_API_KEYS" in refusal(capsys, [], {"RELEVANCE_GEN_API_KEY": "secret"})


def test_error_does_not_repeat_secret(capsys: pytest.CaptureFixture[str]) -> None:
    """The value of a flag or variable that is not known is not printed: it may be a key."""
    assert "secret" not in refusal(capsys, ["--api-keys=secret"], {})
    assert "secret" not in refusal(capsys, [], {"RELEVANCE_GEN_API_KEY": "secret"})


@given(
    st.dictionaries(
        st.sampled_from([setting.variable for setting in SETTINGS]), st.text(max_size=9)
    )
)
def test_any_environment_is_read_or_refused(environ: dict[str, str]) -> None:
    """Any values give settings or a single clear error."""
    try:
        assert isinstance(read([], environ), Settings)
    except SystemExit as ended:
        assert ended.code == 2


def test_help_states_the_runner_defaults_of_unset_settings() -> None:
    """--help states the default of the runner for each setting that it passes on only if set."""
    (max_queue,) = (setting.help for setting in SETTINGS if setting.flag == "--max-queue")
    (cache_bytes,) = (
        setting.help for setting in SETTINGS if setting.flag == "--prefix-cache-bytes"
    )
    assert f"(default: {DEFAULT_MAX_QUEUE})" in max_queue
    assert f"(default: {DEFAULT_PREFIX_CACHE_BYTES >> 20}MiB)" in cache_bytes


def test_settings_are_documented() -> None:
    """docs/settings.md lists every setting with its default and its help text, and no other settings."""
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `--")]
    assert rows == [
        f"| `{setting.flag}` | {describe_default(setting.attribute.default)} | {setting.help} |"
        for setting in SETTINGS
    ]
