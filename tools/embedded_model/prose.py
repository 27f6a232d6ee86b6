"""Cut the corpus's prose into clean English sentences for the model.

    python tools/embedded_model/prose.py BUILD

writes `BUILD/prose/{train,held_out}.txt`: one sentence a line, a blank line between paragraphs; and
`words.txt`, a word a line. Every fiftieth document of running text, and every fiftieth line of the
dictionary, is held out. A third of the paragraphs keep their markup: backticks, asterisks,
brackets.
"""

from __future__ import annotations

import argparse
import json
import re
import zlib
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD_OUT_EVERY = 50
MARKED_EVERY = 3  # paragraphs that keep their markup
SHORTEST, LONGEST = 20, 300  # characters of a sentence
MOST_SENTENCES = 12  # of a paragraph

_MARKUP = (
    (re.compile(r":[\w:+-]+:`~?!?([^`<]*?)\s*(?:<[^`]*>)?`"), r"\1"),  # reStructuredText roles
    (re.compile(r"`([^`<]*?)\s*<[^`]*>`_+"), r"\1"),
    (re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])"), r"\1"),  # Markdown links
    (re.compile(r"\{([^}]*)\}"), r"\1"),  # cross references of dictionaries
    (re.compile(r"``?([^`]*)``?"), r"\1"),
    (re.compile(r"\*\*?([^*\s][^*]*)\*\*?"), r"\1"),
)
_AUTHOR = re.compile(r"\s*--\s*[A-Z][\w. ]*$")  # "--Shak." after a quotation
_FIELD = re.compile(
    r"\([A-Z][\w. &]*\.\),? ?|--| ,|\b(?:n|a|adj|adv|v)\. "
)  # "(Zool.)" and grammar marks
_SENTENCE_END = re.compile(
    r"(?<=[a-z0-9)\"'”’`*][.?!])\s+(?=[A-Z0-9\"'“‘`*(])|(?<=[.?!][\"'”’)])\s+(?=[A-Z\"'“‘`*(])"
)
_SENTENCE = re.compile(r"[A-Z0-9\"'“‘`*(\[][ -~“”‘’–—…]*[a-zA-Z0-9)\]`*\"'”’%][.?!][\"'”’)]?")
_WORDNET_GLOSS = re.compile(r"^([^:]+): (.*)$")
_ABBREVIATION = re.compile(
    r"\b(?:e\.g|i\.e|etc|cf|vs|fr|Fig|See|No|St|Mr|Mrs|Dr|Obs|Gr|L|F|AS|OE|pl|imp|adj|[A-Z])\.$"
)


def _is_sentence(text: str) -> bool:
    """Return whether a text looks like a sentence, by length, characters, and lower-case words."""
    if (
        not SHORTEST <= len(text) <= LONGEST
        or not _SENTENCE.fullmatch(text)
        or _ABBREVIATION.search(text)
        or _FIELD.search(text)
    ):
        return False
    words = text.split()
    return len(words) >= 5 and sum(word.strip(",;:.()'").islower() for word in words) >= 0.6 * len(
        words
    )


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences and keep the clean sentences."""
    if zlib.crc32(paragraph.encode()) % MARKED_EVERY:
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
    text = " ".join(paragraph.split())
    return [piece for piece in _SENTENCE_END.split(text) if _is_sentence(piece)]


def _wordnet(line: str) -> list[str]:
    """Turn "word, word: meaning; "an example"" into sentences."""
    match = _WORDNET_GLOSS.match(line)
    if not match:
        return []
    names, gloss = match.groups()
    name = names.split(",")[0]
    meaning, *rest = gloss.split('"')
    meaning = re.sub(r"\([^)]*\)\s*", "", meaning).strip(" ;")
    made = [f"{name[0].upper()}{name[1:]}: {meaning}."] if meaning else []
    examples = (example.strip(" ;,.") for example in rest[::2])
    made += [f"{example[0].upper()}{example[1:]}." for example in examples if example]
    return [sentence for sentence in made if _is_sentence(sentence)]


def paragraphs(record: dict[str, str]) -> Iterator[list[str]]:
    """Yield the paragraphs of a document, each a list of sentences."""
    if record["source"] == "wordnet-base":
        yield from map(_wordnet, record["text"].splitlines())
        return
    for paragraph in re.split(r"\n\s*\n", record["text"]):
        found = sentences(_AUTHOR.sub("", paragraph))
        for start in range(0, len(found), MOST_SENTENCES):
            yield found[start : start + MOST_SENTENCES]


def write(build: Path) -> None:
    """Write the files; a paragraph whose first sentence came before is left out."""
    target = build / "prose"
    target.mkdir(exist_ok=True)
    seen: set[str] = set()
    n_running = n_dictionary = 0
    with (
        (build / "corpus" / "english.jsonl").open(encoding="utf-8") as english,
        (build / "corpus" / "prose.jsonl").open(encoding="utf-8") as prose,
        (target / "train.txt").open("w") as train,
        (target / "held_out.txt").open("w") as held_out,
    ):
        for record in map(json.loads, chain(english, prose)):
            if record["source"] == "wamerican-huge":
                words = [
                    word for word in record["text"].split() if word.isalpha() and word.isascii()
                ]
                (target / "words.txt").write_text("\n".join(words))
            if not record["is_prose"]:
                continue
            n_running += 1
            is_dictionary = record["source"] == "wordnet-base"
            for paragraph in paragraphs(record):
                fresh = [sentence for sentence in paragraph if sentence not in seen]
                if not fresh or fresh[0] != paragraph[0]:
                    continue
                seen.update(fresh)
                n_dictionary += is_dictionary
                counter = n_dictionary if is_dictionary else n_running
                (held_out if counter % HELD_OUT_EVERY == 0 else train).write(
                    "\n".join(fresh) + "\n\n"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="the folder given to corpus.py")
    write(parser.parse_args().build)
