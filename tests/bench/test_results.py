"""Tests that tables, plots and figures in documents equal the recorded measurements."""

import argparse
import itertools
import json
import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench import plotting, recording, rendering
from bench.recording import Record

ROOT = Path(__file__).parents[2]
RESULTS = rendering.read()
PAGES_OF_FIGURES = ("README.md", "docs/measurements.md")
"""Pages on which each figure with a unit of time, speed or size must be a measurement."""
_UNNAMED = re.compile(
    r"\d[\d.,]*\s?(?:ms|µs|×|times as|tokens a second|requests a second|bytes a byte)(?!\w)"
)
TWO = {
    "name": "speed",
    "measurements": [
        {"group": "a, b", "what": "ours", "unit": "ms", "value": 12.345, "places": 1},
        {
            "group": "a, b",
            "what": "theirs",
            "unit": "ms",
            "value": 1234.5,
            "places": 1,
            "bar": "≤ 2",
            "holds": False,
        },
        {
            "group": "a, b",
            "what": "ours",
            "unit": "×",
            "value": 0.663,
            "places": 2,
            "bar": "≥ 0.5",
            "holds": True,
        },
    ],
}


def test_results_page_equals_records():
    """RESULTS.md equals the output of `make results` for bench/results."""
    shown = (ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8")
    assert shown == rendering.page(RESULTS), "run: make results"


def test_plots_equal_records():
    """Each plot equals the output of `make results`, is well-formed, and no old plot remains."""
    made = rendering.plots(RESULTS)
    shown = {
        path.name: path.read_text(encoding="utf-8")
        for path in rendering.PICTURES.glob("performance-*.svg")
    }
    assert shown == made, "run: make results"
    for picture in made.values():
        assert ET.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - made here


@pytest.mark.parametrize("document", rendering.documents(), ids=lambda path: path.name)
def test_document_figures_equal_records(document: Path):
    """A figure in `bench/figures.toml` equals its measurement with the document's decimals."""
    text = document.read_text(encoding="utf-8")
    assert text == rendering.with_figures(text, RESULTS, rendering.passages(document)), (
        "run: make results"
    )


def test_figure_documents_exist():
    """Each document named in `bench/figures.toml` exists."""
    named = tomllib.loads((ROOT / "bench" / "figures.toml").read_text(encoding="utf-8"))
    assert named.keys() <= {path.relative_to(ROOT).as_posix() for path in rendering.documents()}


@pytest.mark.parametrize("name", PAGES_OF_FIGURES)
def test_measurement_pages_have_named_figures_only(name: str):
    """On measurement pages each figure outside of tables refers to a measurement."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for made in (
        rendering.TABLE,
        rendering.ORIGIN,
        *map(rendering.pattern, texts_with_figures(ROOT / name)),
    ):
        text = made.sub("", text)
    assert _UNNAMED.findall(text) == []


def texts_with_figures(document: Path) -> list[str]:
    return [passage["text"] for passage in rendering.passages(document)]


def test_unnamed_pattern_finds_figures():
    """The pattern of the test above finds figures."""
    text = rendering.pattern("and {} times as long").sub(
        "", "it takes 3.5 ms, 2× and 8 times as long"
    )
    assert _UNNAMED.findall(text) == ["3.5 ms", "2×"]


@pytest.mark.parametrize("document", rendering.documents(), ids=lambda path: path.name)
def test_documents_have_no_comment_after_figure(document: Path):
    """No figure is followed by a comment, which a reader in a terminal would see."""
    assert re.findall(r"\d<!--", document.read_text(encoding="utf-8")) == []


def test_record_has_origin():
    """A record has machine, versions, commit, date and command, without local paths."""
    assert RESULTS
    for name, record in RESULTS.items():
        assert record["name"] == name
        assert {"command", "quick", "date", "commit", "machine", "versions", "measurements"} <= set(
            record
        )
        assert "/" not in record["command"]
        assert record["measurements"]


def test_record_is_saved_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A saved record is read with its limits and their outcome; it is printed at once."""
    record = Record("speed", argparse.Namespace(quick=True))
    record.add("a, b", "ours", 12.345, "ms", at_most=2, places=1)
    record.add("a, b", "ours", 3.0, "×", at_least=2)
    record.save(tmp_path)
    (read,) = rendering.read(tmp_path).values()
    assert read["quick"] is True
    assert [(m["value"], m["bar"], m["holds"]) for m in read["measurements"]] == [
        (12.345, "≤ 2", False),
        (3.0, "≥ 2", True),
    ]
    printed = capsys.readouterr().out
    assert re.search(r"ours +12\.3 ms +≤ 2: MISSED", printed)
    assert json.loads((tmp_path / "speed.json").read_text(encoding="utf-8")) == read


def test_failed_or_partial_run_keeps_last_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The last complete record is unchanged."""
    monkeypatch.setattr(recording, "RESULTS", tmp_path)

    def fail() -> None:
        with Record("speed", argparse.Namespace()) as record:
            record.add("a", "b", 1 / 1, "ms")
            record.add("a", "b", 1 / 0, "ms")

    with pytest.raises(ZeroDivisionError):
        fail()
    with Record("speed", argparse.Namespace(), is_whole=False) as part:
        part.add("a", "b", 1.0, "ms")
    assert list(tmp_path.iterdir()) == []


def test_table_has_column_per_unit():
    """Rows are measured subjects; a limit follows its figure and is marked if it was missed."""
    assert rendering._table("a, b", TWO["measurements"]) == (
        "| a, b | ms | × |\n|---|---|---|\n| ours | 12.3 | 0.66 (≥ 0.5) |\n| theirs | 1,234.5 (≤ 2: **missed**) |  |\n"
    )


@pytest.mark.parametrize(
    ("shown", "what", "written"),
    [
        ("takes 11.0 ms", "ours :: ms", "takes 12.3 ms"),
        ("takes 1,111 ms", "theirs :: ms", "takes 1,234 ms"),
        ("takes .70 ms", "ours :: ×", "takes .66 ms"),
        ("takes 0.7 ms", "ours :: ×", "takes 0.7 ms"),
    ],
)
def test_figures_keep_number_format(shown: str, what: str, written: str):
    """Figures keep their number of decimals and leading zeros; other text is unchanged."""
    named = [{"text": "takes {} ms", "figures": [f"speed :: a, b :: {what}"]}]
    assert (
        rendering.with_figures(f"5 {shown}, 6 (s)", {"speed": TWO}, named) == f"5 {written}, 6 (s)"
    )


@pytest.mark.parametrize("text", ["takes ages", "takes 1 ms and takes 2 ms"])
def test_figure_passage_must_occur_once(text: str):
    """A passage that is missing or repeated raises an error."""
    named = [{"text": "takes {} ms", "figures": ["speed :: a, b :: ours :: ms"]}]
    with pytest.raises(LookupError, match="times in the document: takes"):
        rendering.with_figures(text, {"speed": TWO}, named)


def test_table_is_written_between_marks():
    """The table of a record is inserted, transposed on request; a missing record raises."""
    marks = "before\n<!-- table: speed :: a, b{} -->\nold\n<!-- end of table -->\nbehind"
    found = rendering.with_figures(marks.format(" :: turned"), {"speed": TWO})
    rows = (
        "| a, b | ours | theirs |\n|---|---|---|\n"
        "| ms | 12.3 | 1,234.5 (≤ 2: **missed**) |\n| × | 0.66 (≥ 0.5) |  |\n"
    )
    assert (
        found
        == f"before\n<!-- table: speed :: a, b :: turned -->\n\n{rows}\n<!-- end of table -->\nbehind"
    )
    assert rendering.with_figures(found, {"speed": TWO}) == found
    assert "| ours | 12.3 | 0.66" in rendering.with_figures(marks.format(""), {"speed": TWO})
    with pytest.raises(LookupError, match="no such table"):
        rendering.with_figures(marks.format(", c"), {"speed": TWO})


def test_origin_is_written_between_marks():
    """Command, commit and machine of a record are inserted; a missing record raises."""
    marks = "before\n<!-- origin: {} -->\nold\n<!-- end of origin -->\nbehind"
    found = rendering.with_figures(marks.format("speed"), RESULTS)
    assert RESULTS["speed"]["commit"] in found
    assert "old" not in found
    assert rendering.with_figures(found, RESULTS) == found
    with pytest.raises(LookupError, match="no such record: nothing"):
        rendering.with_figures(marks.format("nothing"), RESULTS)


def contrast(colour: str, ground: str) -> float:
    """Return the contrast of two colours by the WCAG."""

    def luminance(text: str) -> float:
        parts = (int(text[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(colour), luminance(ground)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", ["#ffffff", "#fdfcf9", "#181715"])
def test_plots_have_contrast_on_light_and_dark(ground: str):
    """Line colors contrast with both backgrounds; text has the color of the page."""
    picture = plotting.lines("t", "x", "y", {str(n): [(1.0, 2.0), (10.0, 3.0)] for n in range(6)})
    colours = set(re.findall(r"(?:fill|stroke)[=:][ \"]*(#[0-9a-f]{6})", picture))
    assert len(colours) == 6
    assert min(contrast(colour, ground) for colour in colours) >= 3
    assert set(re.findall(r"text {[^}]*fill: (\w+)", picture)) == {"currentColor"}


def test_plot_texts_fit_without_overlap():
    """Titles (9 px per letter) and legends (7 px) fit, and bar labels do not touch."""
    for picture in rendering.plots(RESULTS).values():
        for x, text in re.findall(
            r'<text x="([\d.]+)" y="[\d.]+" text-anchor="start">(.*?)<', picture
        ):
            assert float(x) + 7 * len(text) <= plotting.WIDTH
        (title,) = re.findall(r'class="title" x="64" y="16">(.*?)<', picture)
        assert 64 + 9 * len(title) <= plotting.WIDTH
        rows: dict[str, list[tuple[float, float]]] = {}
        for x, y, text in re.findall(
            r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="middle">(.*?)<', picture
        ):
            half = 3.5 * len(text)
            rows.setdefault(y, []).append((float(x) - half, float(x) + half))
        for row in rows.values():
            assert all(right <= left for (_, right), (left, _) in itertools.pairwise(sorted(row)))


def test_points_and_bars_match_values():
    """Equal factors have equal distance on a logarithmic axis; bar heights equal values."""
    picture = plotting.lines("t", "x", "y", {"a": [(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)]})
    xs, ys = zip(
        *[map(float, m) for m in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', picture)], strict=True
    )
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
    assert ys[0] > ys[1]
    picture = plotting.bars("t", "y", ["p", "q"], {"a": [1.0, 2.0], "b": [3.0, 4.0]})
    heights = [
        float(height)
        for height in re.findall(
            r'<rect x="[\d.]+" y="[\d.]+" width="[\d.]+" height="([\d.]+)" fill', picture
        )
    ]
    assert heights[:4] == pytest.approx([heights[0] * n for n in (1, 3, 2, 4)], rel=0.02)


def test_figure_without_measurement_raises():
    """A figure that names a missing measurement raises an error."""
    with pytest.raises(LookupError, match="speed :: a :: b :: c"):
        rendering.with_figures(
            "1", {"speed": TWO}, [{"text": "{}", "figures": ["speed :: a :: b :: c"]}]
        )
