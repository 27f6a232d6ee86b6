"""The server's settings: one table, read from flags and from ``RELEVANCE_GEN_*`` environment variables.

A flag wins over its environment variable, which wins over the default; an empty variable is as good as none. Whatever
is not known is refused.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from attrs import Attribute, field, fields, frozen

PREFIX = "RELEVANCE_GEN_"

_FURTHER_VARIABLES = {
    "RELEVANCE_GEN_API_KEYS": "API keys, comma-separated; never a flag, since other users can read a command line",
}
"""Environment variables that have no flag."""

_SIZES = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}

Parse = Callable[[str], Any]


def _integer(low: int, high: int | None = None) -> Parse:
    interval = f"of at least {low}" if high is None else f"in [{low}, {high}]"

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text) or int(text) < low or (high is not None and int(text) > high):
            raise ValueError(f"an integer {interval}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError("a number of seconds above 0")
    return value


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15}) ?([a-zA-Z]*)", text)
    if not found or found[2].upper() not in _SIZES:
        raise ValueError("a size in bytes, such as 1048576, 64MiB or 1GiB")
    return int(found[1]) * _SIZES[found[2].upper()]


def _switch(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in known:
        raise ValueError("on or off")
    return known[text.lower()]


def _choice(*names: str) -> Parse:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text

    return parse


def _list(text: str) -> tuple[str, ...]:
    return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)


def _rate(text: str) -> str:
    if text != "off" and not re.fullmatch(r"[1-9][0-9]{0,8}/([1-9][0-9]{0,4})?(second|minute|hour|day)", text):
        raise ValueError("a count per time, such as 100/second, 6000/minute or 500/10minute, or off")
    return text


def _text(text: str) -> str:
    if not text:
        raise ValueError("a string that is not empty")
    return text


def _setting(default: Any, help: str, parse: Parse = _text, *, group: str) -> Any:  # noqa: A002 argparse's own word
    return field(default=default, metadata={"help": help, "parse": parse, "group": group}, kw_only=True)


@frozen
class Settings:
    """Everything an operator can set. ``--help`` prints this table; docs/server.md explains it."""

    host: str = _setting("127.0.0.1", "address to listen on; 0.0.0.0 or :: for every interface", group="Listening")
    port: int = _setting(
        8000, "port to listen on; 0 takes a free one and prints it", _integer(0, 65535), group="Listening"
    )
    workers: int = _setting(
        1,
        "processes that share the port; with more than one, a process of its own holds the model",
        _integer(1, 256),
        group="Listening",
    )
    cors_origins: tuple[str, ...] = _setting(
        (), "web origins whose pages may call, comma-separated; * for all", _list, group="Listening"
    )
    idle_timeout_s: float = _setting(
        75.0, "seconds a connection may stay without a complete request head", _seconds, group="Listening"
    )
    drain_timeout_s: float = _setting(
        30.0, "seconds that running work may take to finish after SIGTERM", _seconds, group="Listening"
    )

    api_keys_file: str | None = _setting(
        None, "file of API keys, one a line, plain or as sha256:HEX; re-read when it changes", group="Access"
    )
    generation_requires_key: bool = _setting(
        False, "ask for a key on /generate, /generate_stream and /stats too", _switch, group="Access"
    )
    rate_limit: str = _setting("6000/minute", "requests that one key may make per time, or off", _rate, group="Access")
    rate_limit_storage: str = _setting(
        "memory://", "where requests are counted; redis://HOST:PORT shares the count among processes", group="Access"
    )

    encoding: str | None = _setting(
        None, "tiktoken encoding or rank file that counts tokens; the embedded one if not given", group="Search"
    )
    weighting: Literal["pivoted", "cosine"] = _setting(
        "pivoted",
        "pivoted to answer questions, cosine for the textbook's",
        _choice("pivoted", "cosine"),
        group="Search",
    )
    search_threads: int = _setting(
        0, "searches at once in one worker; 0 divides the cores among the workers", _integer(0, 1024), group="Search"
    )
    search_queue: int = _setting(
        512, "searches that may wait in one worker; more are refused with 429", _integer(0, 1_000_000), group="Search"
    )
    queue_timeout_s: float = _setting(
        30.0, "seconds a search may wait for a thread, then 503", _seconds, group="Search"
    )
    index_cache_bytes: int = _setting(
        256 << 20, "memory for indexes of chunks already seen, in each worker; 0 keeps none", _size, group="Search"
    )

    model: str | None = _setting(
        None, "GGUF file; the embedded model if not given; none to serve search alone", group="Generation"
    )
    n_ctx: int | None = _setting(
        None, "most tokens of one sequence, prompt and generated", _integer(1), group="Generation"
    )
    n_slots: int | None = _setting(None, "sequences decoded at once", _integer(1, 255), group="Generation")
    n_batch: int | None = _setting(
        None, "most prompt tokens computed between two steps of running sequences", _integer(1), group="Generation"
    )
    n_threads: int | None = _setting(None, "CPU threads that decode", _integer(1, 512), group="Generation")
    n_gpu_layers: int | None = _setting(
        None, "layers on the GPU; -1 = all; by default all where the build has one", _integer(-1), group="Generation"
    )
    flash_attention: bool | None = _setting(
        None, "many sequences faster on a CPU, but not with the same bits as alone", _switch, group="Generation"
    )
    max_queue: int | None = _setting(
        None, "samples that may wait for a slot; more are refused with 429", _integer(1), group="Generation"
    )
    prefix_cache_bytes: int | None = _setting(
        None, "memory for the computed prompts of recent requests; 0 keeps none", _size, group="Generation"
    )
    generation_timeout_s: float = _setting(
        600.0, "seconds one generation may take, waiting included, then 503", _seconds, group="Generation"
    )

    max_body_bytes: int = _setting(64 << 20, "largest request body, after decompression", _size, group="Limits")
    max_buffered_bytes: int = _setting(
        1 << 30, "all request bodies held at once in one worker; beyond it 503", _size, group="Limits"
    )
    max_chunks: int = _setting(200_000, "most chunks in one search", _integer(1), group="Limits")
    max_depth: int = _setting(64, "deepest nesting of a request's JSON", _integer(1, 500), group="Limits")
    body_timeout_s: float = _setting(120.0, "seconds to receive a request's body, then 408", _seconds, group="Limits")

    log_format: Literal["json", "text"] = _setting(
        "json", "form of the log on standard error: json or text", _choice("json", "text"), group="Log"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "least severe line logged", _choice("debug", "info", "warning", "error"), group="Log"
    )
    access_log: bool = _setting(True, "log one line for each request", _switch, group="Log")


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the settings from `argv`, then `environ`, then the defaults.

    Exits with status 2 and one clear line on standard error if anything is unknown or not allowed, and with status 0
    after ``--help``.
    """
    parser = _parser()
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        flags = [flag for action in parser._actions for flag in action.option_strings]
        name = unknown[0].split("=")[0]  # without the value, which may be a secret
        parser.error(_unknown(name, name, flags))
    variables = {_variable(setting): setting for setting in fields(Settings)}
    for name in environ:
        if name.startswith(PREFIX) and name not in variables and name not in _FURTHER_VARIABLES:
            parser.error(_unknown(f"the environment variable {name}", name, [*variables, *_FURTHER_VARIABLES]))
    values: dict[str, Any] = {}
    for name, setting in variables.items():
        text, source = getattr(given, setting.name), _flag(setting)
        if text is None and environ.get(name):
            text, source = environ[name], name
        if text is not None:
            values[setting.name] = _parsed(parser, setting, source, text)
    return Settings(**values)


def _parsed(parser: argparse.ArgumentParser, setting: Attribute[Any], source: str, text: str) -> Any:
    try:
        return setting.metadata["parse"](text)
    except ValueError as error:
        return _refuse(parser, f"{source} must be {error}, got {text[:80]!a}")


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    parser.error(message)


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"{what} is not a known setting" + (f"; did you mean {nearest[0]}?" if nearest else "; see --help")


def _flag(setting: Attribute[Any]) -> str:
    return "--" + setting.name.replace("_", "-")


def _variable(setting: Attribute[Any]) -> str:
    return PREFIX + setting.name.upper()


def _parser() -> argparse.ArgumentParser:
    further = "\n".join(f"  {name}\n      {text}" for name, text in _FURTHER_VARIABLES.items())
    parser = argparse.ArgumentParser(
        prog="python -m relevance_gen.serve",
        description="Serve search and generation over HTTP.",
        epilog=f"Every flag is also an environment variable: --max-body-bytes is {PREFIX}MAX_BODY_BYTES.\n\n"
        f"environment only:\n{further}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for setting in fields(Settings):
        name = setting.metadata["group"]
        if name not in groups:
            groups[name] = parser.add_argument_group(name)
        groups[name].add_argument(
            _flag(setting),
            metavar="VALUE",
            default=None,
            help=f"{setting.metadata['help']} (default: {shown(setting.default)})".replace("%", "%%"),
        )
    return parser


def shown(default: object) -> str:
    """Return a default as people read it."""
    match default:
        case None | ():
            return "not set"
        case bool():
            return "on" if default else "off"
        case float():
            return f"{default:g}"
        case _:
            return str(default)
