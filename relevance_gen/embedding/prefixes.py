"""What models want in front of a text, so that they know whether it asks or answers.

They were trained with these words, and find less without them. The names are those of files and hub repositories;
where none fits, nothing is put in front.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Prefixes(NamedTuple):
    """What goes in front of a query and of a passage."""

    query: str = ""
    passage: str = ""


_INSTRUCTION: Final = "Represent this sentence for searching relevant passages: "
_KNOWN: Final = (
    # The first name that is part of the file's counts. Sources: the models' cards on the Hugging Face hub.
    (r"e5-mistral|e5.*instruct|qwen3-embedding", Prefixes("Instruct: Given a question, retrieve passages that answer "
                                                          "it\nQuery: ")),
    (r"(^|[^a-z0-9])e5-", Prefixes("query: ", "passage: ")),
    (r"bge-m3", Prefixes()),
    (r"bge-.*-en|bge-(small|base|large)", Prefixes(_INSTRUCTION)),
    (r"arctic-embed.*v2|arctic-embed-[ml]-v2", Prefixes("query: ")),
    (r"arctic-embed|mxbai-embed", Prefixes(_INSTRUCTION)),
    (r"nomic-embed", Prefixes("search_query: ", "search_document: ")),
    (r"embeddinggemma", Prefixes("task: search result | query: ", "title: none | text: ")),
)  # fmt: skip


def known_prefixes(name: str) -> Prefixes:
    """Return the prefixes of the model of a name; none for one that is not known.

    >>> known_prefixes("intfloat/e5-small-v2")
    Prefixes(query='query: ', passage='passage: ')
    >>> known_prefixes("all-MiniLM-L6-v2.f16.gguf")
    Prefixes(query='', passage='')
    """
    return next((prefixes for pattern, prefixes in _KNOWN if re.search(pattern, name.lower())), Prefixes())
