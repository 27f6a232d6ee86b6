"""What is shown of the benches is what they recorded: tables, plots, and figures in documents."""

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
"""Pages on which every figure with a unit of time, speed or size has to be a measured one."""
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


def test_the_tables_are_those_of_the_records():
    """RESULTS.md is what `make results` makes of bench/results."""
    shown = (ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8")
    assert shown == rendering.page(RESULTS), "run: make results"


def test_the_plots_are_those_of_the_records():
    """Every plot is what `make results` makes of bench/results, is well-formed, and none is left of another time."""
    made = rendering.plots(RESULTS)
    shown = {
        path.name: path.read_text(encoding="utf-8")
        for path in rendering.PICTURES.glob("performance-*.svg")
    }
    assert shown == made, "run: make results"
    for picture in made.values():
        assert ET.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - made here


@pytest.mark.parametrize("document", rendering.documents(), ids=lambda path: path.name)
def test_the_figures_of_documents_are_those_of_the_records(document: Path):
    """A figure that `bench/figures.toml` names is that measurement, with as many decimals as the document shows."""
    text = document.read_text(encoding="utf-8")
    assert text == rendering.with_figures(text, RESULTS, rendering.passages(document)), (
        "run: make results"
    )


def test_every_named_figure_is_of_a_document():
    """A document that is named by the figures' origins is one that is written."""
    named = tomllib.loads((ROOT / "bench" / "figures.toml").read_text(encoding="utf-8"))
    assert named.keys() <= {path.relative_to(ROOT).as_posix() for path in rendering.documents()}


@pytest.mark.parametrize("name", PAGES_OF_FIGURES)
def test_no_figure_is_from_elsewhere(name: str):
    """On the pages that show what was measured, a figure outside of tables has a measurement's name."""
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


def test_an_unnamed_figure_is_found():
    """The test above can fail."""
    text = rendering.pattern("and {} times as long").sub(
        "", "it takes 3.5 ms, 2× and 8 times as long"
    )
    assert _UNNAMED.findall(text) == ["3.5 ms", "2×"]


@pytest.mark.parametrize("document", rendering.documents(), ids=lambda path: path.name)
def test_documents_are_read_as_they_are(document: Path):
    """No figure of a document has a comment behind it: a reader in a terminal sees the text alone."""
    assert re.findall(r"\d<!--", document.read_text(encoding="utf-8")) == []


def test_every_record_says_where_it_is_from():
    """Machine, versions, commit, date and command; and no path of the machine that it was made on."""
    assert RESULTS
    for name, record in RESULTS.items():
        assert record["name"] == name
        assert {"command", "quick", "date", "commit", "machine", "versions", "measurements"} <= set(
            record
        )
        assert "/" not in record["command"]
        assert record["measurements"]


def test_a_record_is_kept_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """What was added is what is read, with its bar and whether that holds; it is printed at once."""
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


def test_what_failed_or_was_a_part_leaves_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The last whole record stays as it was."""
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


def test_a_table_has_a_column_for_each_unit():
    """Rows by what was measured; a bar stands behind the figure, and says so where it was missed."""
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
def test_figures_are_written_as_they_were_shown(shown: str, what: str, written: str):
    """With the same number of decimals, and no zero in front where there was none; nothing else is changed."""
    named = [{"text": "takes {} ms", "figures": [f"speed :: a, b :: {what}"]}]
    assert (
        rendering.with_figures(f"5 {shown}, 6 (s)", {"speed": TWO}, named) == f"5 {written}, 6 (s)"
    )


@pytest.mark.parametrize("text", ["takes ages", "takes 1 ms and takes 2 ms"])
def test_a_named_figure_stands_once(text: str):
    """A passage that is not there, or twice, is an error: no figure is left as it was, unseen."""
    named = [{"text": "takes {} ms", "figures": ["speed :: a, b :: ours :: ms"]}]
    with pytest.raises(LookupError, match="times in the document: takes"):
        rendering.with_figures(text, {"speed": TWO}, named)


def test_a_table_is_written_between_its_marks():
    """The table of a record, its rows for columns where that is asked for; of nothing, an error."""
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


def test_an_origin_is_written_between_its_marks():
    """Command, commit and machine of a record; of none, an error."""
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
def test_plots_can_be_read_on_light_and_on_dark(ground: str):
    """Lines stand out from either ground, which no plot chooses; text has the colour of the page's."""
    picture = plotting.lines("t", "x", "y", {str(n): [(1.0, 2.0), (10.0, 3.0)] for n in range(6)})
    colours = set(re.findall(r"(?:fill|stroke)[=:][ \"]*(#[0-9a-f]{6})", picture))
    assert len(colours) == 6
    assert min(contrast(colour, ground) for colour in colours) >= 3
    assert set(re.findall(r"text {[^}]*fill: (\w+)", picture)) == {"currentColor"}


def test_no_text_of_a_plot_is_cut_or_overlaps():
    """Titles (9 pixels a letter) and legends (7) end inside the picture, and names of bars in a row do not touch."""
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


def test_points_and_bars_stand_where_their_values_are():
    """A factor is the same distance everywhere on a logarithmic axis; a bar is as high as its value."""
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


def test_a_figure_of_nothing_is_an_error():
    """A measurement that there is none of cannot stand behind a figure."""
    with pytest.raises(LookupError, match="speed :: a :: b :: c"):
        rendering.with_figures(
            "1", {"speed": TWO}, [{"text": "{}", "figures": ["speed :: a :: b :: c"]}]
        )
