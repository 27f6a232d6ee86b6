"""Make tables, plots and the figures in the documentation from bench/results: ``python -m bench.rendering``.

- ``bench/RESULTS.md`` has all measurements, and after each benchmark the notes in
  ``bench/results/NAME.md``.
- ``docs/pictures/performance-*.svg`` are the plots.
- ``bench/figures.toml`` names the measurement of each figure in README.md and docs/, so that these
  can be read as they are. A figure is updated with its present number of decimals.
- A table of a record is written between ``<!-- table: quality :: nDCG@10 -->`` and ``<!-- end of
  table -->``; with ``:: turned`` after the name, it is transposed.
- Command, commit, machine and versions are written between ``<!-- origin: quality -->`` and ``<!--
  end of origin -->``.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bench import memory, plotting, speed
from bench.recording import RESULTS

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
FIGURE = r"([\d.,]*\d)"
TABLE = re.compile(
    r"(?P<begin><!-- table: (?P<name>\w+) :: (?P<group>[^\n]+?)(?P<turned> :: turned)? -->\n)"
    r".*?(?P<end><!-- end of table -->)",
    re.DOTALL,
)
ORIGIN = re.compile(
    r"(?P<begin><!-- origin: (?P<name>\w+) -->\n).*?(?P<end><!-- end of origin -->)", re.DOTALL
)
HEADER = """\
# Results

Made by `make results` from the records in `bench/results`: change nothing here. What is to be said of them goes into
`bench/results/NAME.md`. `python -m bench all` measures everything again, `python -m bench all --quick` shows in minutes
that everything works. On a shared machine trust the ratios, which are medians of ratios within one run.
"""
TITLES = {
    "speed": "Search: time",
    "memory": "Search: memory",
    "needle": "Search: a sentence in much text",
    "quality": "Search: quality",
    "encoder": "Search: with an encoder",
    "reranking": "Search: with a reranker",
    "answerable": "Search: is there an answer",
    "passages": "Search: where is the answer",
    "compress": "Search: sentences that fit",
    "citing": "Answers: where each sentence is from",
    "asking": "Answers and citations of ask",
    "generation": "Generation",
    "constraints": "Generation that keeps to a form",
    "gpu": "Generation on a GPU",
    "busy": "Generation where others want the machine",
    "cluster": "A cluster",
    "serve_load": "Server",
    "peers": "Server: generation beside other servers",
    "peers_smollm2": "Server: generation of a chat model beside other servers",
    "attack": "Server: bodies made to be expensive",
}
Results: TypeAlias = dict[str, dict[str, Any]]
"""The records, by the name of the bench."""


def read(folder: Path = RESULTS) -> Results:
    """Return all records in the order of `TITLES`, followed by records without a title."""
    records = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
    }
    return {
        name: records[name]
        for name in sorted(records, key=lambda name: [*TITLES, name].index(name))
    }


# ── Tables ────────────────────────────────────────────────────────────────────────────────────────


def page(results: Results, folder: Path = RESULTS) -> str:
    """Return the text of RESULTS.md."""
    names = [name for name in TITLES if name in results or (folder / f"{name}.md").exists()]
    names += [name for name in results if name not in TITLES]
    return "\n".join([HEADER, *(_section(name, results.get(name), folder) for name in names)])


def _section(name: str, record: dict[str, Any] | None, folder: Path) -> str:
    module = f"bench.{name}" if record is None else record["command"].split()[2]
    parts = [f"## {TITLES.get(name, name)} (`{module}`)\n"]
    if record is not None:
        parts.append(_origin(record))
        groups = dict.fromkeys(measured["group"] for measured in record["measurements"])
        parts += [
            _table(group, [m for m in record["measurements"] if m["group"] == group])
            for group in groups
        ]
    remarks = folder / f"{name}.md"
    if remarks.exists():
        parts.append(remarks.read_text(encoding="utf-8").strip() + "\n")
    return "\n".join(parts)


def _origin(record: dict[str, Any]) -> str:
    machine = record["machine"]
    parts = [
        f"`{record['command']}` at commit {record['commit']}, {record['date'][:10]}, {record['seconds']:.0f} s",
        f"{machine['processor']}, {machine['n_cpus']} processors, {machine['memory_gib']} GiB, {machine['system']}",
        f"load {machine['load']}",
        ", ".join(f"{name} {number}" for name, number in record["versions"].items()),
    ]
    warning = (
        "**A quick run: it shows that everything works, and not how fast.** "
        if record["quick"]
        else ""
    )
    return f"{warning}{'; '.join(parts)}.\n"


def _table(group: str, measurements: list[dict[str, Any]], *, is_turned: bool = False) -> str:
    row, column = ("unit", "what") if is_turned else ("what", "unit")
    units = list(dict.fromkeys(measured[column] for measured in measurements))
    rows: dict[str, dict[str, str]] = {}
    for measured in measurements:
        cells = rows.setdefault(measured[row], {})
        cells[measured[column]] = f"{measured['value']:,.{measured['places']}f}"
        if "bar" in measured:
            verdict = "" if measured["holds"] else ": **missed**"
            cells[measured[column]] += f" ({measured['bar']}{verdict})"
    lines = [f"| {group} | {' | '.join(units)} |", "|---" * (len(units) + 1) + "|"]
    lines += [
        f"| {what} | {' | '.join(cells.get(unit, '') for unit in units)} |"
        for what, cells in rows.items()
    ]
    return "\n".join(lines) + "\n"


# ── Plots ─────────────────────────────────────────────────────────────────────────────────────────


def plots(results: Results) -> dict[str, str]:
    """Return the plots that there are measurements for, by the name of their file."""
    makers = {"speed": _speed, "quality": _quality, "generation": _generation, "memory": _memory}
    return {
        f"performance-{name}.svg": maker(results[name])
        for name, maker in makers.items()
        if name in results
    }


def _titled(title: str, record: dict[str, Any]) -> str:
    return f"{title} (a quick run)" if record["quick"] else title


def _speed(record: dict[str, Any]) -> str:
    series: plotting.Series = {}
    for measured in record["measurements"]:
        if measured["group"] == speed.SIZES:
            n_chunks = float(measured["what"].removesuffix(" chunks").replace(",", ""))
            name = measured["unit"].removesuffix(", ms")
            series.setdefault(name, []).append((n_chunks, measured["value"]))
    return plotting.lines(
        _titled("From strings to the ten best", record), "chunks of 1,000 characters", "ms", series
    )


def _quality(record: dict[str, Any]) -> str:
    values = [
        m
        for m in record["measurements"]
        if m["group"] == "nDCG@10" and not m["unit"].startswith("mean")
    ]
    collections = list(dict.fromkeys(measured["unit"] for measured in values))
    series: dict[str, list[float]] = {}
    for measured in values:
        series.setdefault(measured["what"], []).append(measured["value"])
    return plotting.bars(_titled("Quality by collection", record), "nDCG@10", collections, series)


def _generation(record: dict[str, Any]) -> str:
    series: plotting.Series = {}
    for measured in record["measurements"]:
        if measured["group"].startswith("Samples") and measured["unit"] == "tokens a second":
            who, _, n_samples = measured["what"].rpartition(", ")
            mode = measured["group"].rpartition(", ")[2]
            name = {"engine": "relevance_gen", "raw": "raw llama_decode"}[who]
            series.setdefault(f"{name}, {mode}", []).append((float(n_samples), measured["value"]))
    return plotting.lines(
        _titled("Samples of one prompt, 125M parameters", record),
        "samples at once",
        "tokens a second",
        series,
    )


def _memory(record: dict[str, Any]) -> str:
    values = [measured for measured in record["measurements"] if measured["unit"] == "bytes a byte"]
    sizes = list(dict.fromkeys(measured["group"] for measured in values))
    series: dict[str, list[float]] = {}
    for measured in values:
        series.setdefault(measured["what"], []).append(measured["value"])
    names = [size.removeprefix(f"{memory.GROUP}, ") for size in sizes]
    return plotting.bars(
        _titled("Peak of memory above the input", record),
        "bytes for each byte of text",
        names,
        series,
    )


# ── Figures in documents ──────────────────────────────────────────────────────────────────────────


def documents() -> list[Path]:
    """Return the documents that may hold figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def passages(document: Path) -> list[dict[str, Any]]:
    """Return the passages of a document that hold figures: the text of each, with {} for a figure, and their names."""
    read = tomllib.loads((ROOT / "bench" / "figures.toml").read_text(encoding="utf-8"))
    return read.get(document.relative_to(ROOT).as_posix(), [])


def pattern(passage: str) -> re.Pattern[str]:
    """Return what finds a passage of a document, with a group for each figure."""
    return re.compile(FIGURE.join(re.escape(part) for part in passage.split("{}")))


def with_figures(text: str, results: Results, passages: Sequence[dict[str, Any]] = ()) -> str:
    """Return a document with tables and figures updated from the measurements.

    Raises:
        LookupError: a measurement does not exist, or a passage does not occur exactly once in the
            document.
    """
    values = {
        " :: ".join(
            [record["name"], measured["group"], measured["what"], measured["unit"]]
        ): measured["value"]
        for record in results.values()
        for measured in record["measurements"]
    }

    def value(shown: str, name: str) -> str:
        if name not in values:
            raise LookupError(f"no such measurement: {name}")
        written = f"{values[name]:,.{len(shown.partition('.')[2])}f}"
        return written.removeprefix("0") if shown.startswith(".") else written

    for passage in passages:
        places = list(pattern(passage["text"]).finditer(text))
        if len(places) != 1:
            raise LookupError(f"stands {len(places)} times in the document: {passage['text']}")
        figures = map(value, places[0].groups(), passage["figures"])
        written = passage["text"].format(*figures)
        text = text[: places[0].start()] + written + text[places[0].end() :]

    def write_table(found: re.Match[str]) -> str:
        record = results.get(found["name"], {"measurements": []})
        measurements = [
            measured for measured in record["measurements"] if measured["group"] == found["group"]
        ]
        if not measurements:
            raise LookupError(f"no such table: {found['name']} :: {found['group']}")
        table = _table(found["group"], measurements, is_turned=found["turned"] is not None)
        return f"{found['begin']}\n{table}\n{found['end']}"

    def write_origin(found: re.Match[str]) -> str:
        if found["name"] not in results:
            raise LookupError(f"no such record: {found['name']}")
        return f"{found['begin']}\n{_origin(results[found['name']])}\n{found['end']}"

    return TABLE.sub(write_table, ORIGIN.sub(write_origin, text))


def main() -> None:
    results = read()
    (ROOT / "bench" / "RESULTS.md").write_text(page(results), encoding="utf-8")
    for name, picture in plots(results).items():
        (PICTURES / name).write_text(picture, encoding="utf-8")
    for document in documents():
        written = with_figures(document.read_text(encoding="utf-8"), results, passages(document))
        document.write_text(written, encoding="utf-8")
    print(
        "→ bench/RESULTS.md, docs/pictures/performance-*.svg, and the figures in README.md and docs/"
    )


if __name__ == "__main__":
    main()
