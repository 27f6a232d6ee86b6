"""Turn the files of the source packages into plain text, one function for each format."""

from __future__ import annotations

import gzip
import html
import itertools
import re
import struct
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_WINDOW_OFFSET_TABLE = (
    0x58  # bible.data: a 4-byte count of windows at this offset, then their offsets, big-endian
)
_COMPRESS_MAGIC = (
    b"\x1f\x9d\x90"  # what `compress` writes before 16-bit LZW; the windows leave it out
)
_INVISIBLE = re.compile(
    r"<(script|style|head|nav|info)\b.*?</\1>|<!--.*?-->|<\?.*?\?>", re.DOTALL | re.IGNORECASE
)
_BLOCK_END = re.compile(
    r"</(p|div|li|h\d|pre|td|tr|dt|dd|title|item|section|page)>|<br\s*/?>", re.IGNORECASE
)
_PREFORMATTED = re.compile(r"<(pre|screen|code)\b.*?</\1>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")
_BLANK_LINES = re.compile(r"\n\s*\n\s*")
_ROFF_ESCAPES = re.compile(r"\\f(\[[A-Z]*\]|\([A-Z]{2}|.)|\\s[-+]?\d|\\[&|^/,%:)]|\\m\[[^\]]*\]")
_ROFF_CHARACTERS = {
    r"\-": "-",
    r"\(aq": "'",
    r"\(dq": '"',
    r"\(bu": "•",
    r"\(em": "—",
    r"\(en": "–",
    r"\(lq": "“",
    r"\(rq": "”",
    r"\ ": " ",
    r"\(co": "©",
    r"\e": "\\",
    r"\~": " ",
    r"\(oq": "‘",
    r"\(cq": "’",
    r"\[aq]": "'",
    r"\[dq]": '"',
    r"\[lq]": "“",
    r"\[rq]": "”",
}
_GCIDE_NOISE = re.compile(
    r"\[(?:1913 Webster|WordNet 1\.5|PJC|RH|Century Dict\. 1906)(?: *[+,] *[^\]]*)?\]|\\[^\\\n]*\\"
)


def plain(path: Path) -> str:
    """Read a text file, gzipped or not; bytes that are not UTF-8 (a handful, in dictionaries) are left out."""
    raw = path.read_bytes()
    if raw.startswith(b"\x1f\x8b"):
        raw = gzip.decompress(raw)
    return raw.decode("utf-8", "ignore")


def html_text(path: Path) -> str:
    """Strip HTML or Mallard markup; paragraphs are unwrapped, preformatted text keeps its lines."""
    source = _INVISIBLE.sub(" ", plain(path))
    pieces, end = [], 0
    for match in _PREFORMATTED.finditer(source):
        pieces += [_inline(source[end : match.start()]), html.unescape(_TAG.sub("", match.group()))]
        end = match.end()
    pieces.append(_inline(source[end:]))
    return _BLANK_LINES.sub("\n\n", "".join(pieces)).strip()


def _inline(source: str) -> str:
    """Unwrap lines and turn the ends of blocks into blank lines."""
    unwrapped = re.sub(r"\s+", " ", source)
    return re.sub(
        r" *\n\n *", "\n\n", html.unescape(_TAG.sub("", _BLOCK_END.sub("\n\n", unwrapped)))
    )


def man(path: Path) -> str:
    """Strip roff requests and escapes from a manual page, keeping the text of its font and heading macros."""
    lines = []
    for line in plain(path).splitlines():
        text = line
        if line.startswith((".", "'")):
            heading = re.match(r"\.(SH|SS|B|I|BR|BI|IR|IB|RB|RI|TP|IP)\s+(.*)", line)
            if not heading:
                if re.match(r"\.(PP|P|LP|br|sp)\b", line):
                    lines.append("")
                continue
            text = heading.group(2).replace('"', "")
            if heading.group(1) in {"SH", "SS"}:
                text = f"\n{text}\n"
        for escape, character in _ROFF_CHARACTERS.items():
            text = text.replace(escape, character)
        lines.append(_ROFF_ESCAPES.sub("", text))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def wordnet(path: Path) -> str:
    """Read a WordNet data file as "words: gloss" lines."""
    entries = []
    for line in plain(path).splitlines():
        if line.startswith("  "):  # the licence
            continue
        fields, gloss = line.split(" | ", 1)
        words = fields.split(" ")
        count = int(words[3], 16)
        names = ", ".join(
            re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in words[4 : 4 + 2 * count : 2]
        )
        entries.append(f"{names}: {gloss.strip()}")
    return "\n".join(entries)


def gcide(path: Path) -> str:
    """Read the dictionary's entries without pronunciation and source marks, paragraphs unwrapped."""
    text = _GCIDE_NOISE.sub("", plain(path))
    paragraphs = (
        re.sub(r"\s+", " ", paragraph).strip() for paragraph in re.split(r"\n\s*\n", text)
    )
    return "\n".join(
        paragraph.replace("{", "").replace("}", "") for paragraph in paragraphs if paragraph
    )


def bible(path: Path) -> str:
    """Unpack the windows of the Bible Retrieval System's data file: 16-bit LZW, without the magic bytes."""
    raw = path.read_bytes()
    (count,) = struct.unpack_from(">I", raw, _WINDOW_OFFSET_TABLE)
    offsets = [*struct.unpack_from(f">{count}I", raw, _WINDOW_OFFSET_TABLE + 4), len(raw)]
    windows = (_COMPRESS_MAGIC + raw[start:stop] for start, stop in itertools.pairwise(offsets))
    unpacked = b"".join(
        subprocess.run(["gzip", "-dc"], input=w, capture_output=True, check=True).stdout
        for w in windows
    )
    return re.sub(r"^\w+\d+:\d+ ", "", unpacked.decode("ascii"), flags=re.MULTILINE)


READERS = {
    "plain": plain,
    "html_text": html_text,
    "man": man,
    "wordnet": wordnet,
    "gcide": gcide,
    "bible": bible,
}
