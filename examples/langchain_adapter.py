"""Search as a LangChain retriever, and as a document compressor after any retriever.

pip install relevance_gen langchain-core
python examples/langchain_adapter.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever
from pydantic import PrivateAttr

from relevance_gen import ChunkIndex, FolderIndex, SearchResponse, compress, search


def found(response: SearchResponse, documents: Sequence[Document]) -> list[Document]:
    """Return the documents of the results, best first, each with its score in a copy of its metadata."""
    scored = [(documents[one.original_index], one.chunk_score) for one in response.best]
    return [
        one.model_copy(update={"metadata": {**one.metadata, "relevance_score": score}})
        for one, score in scored
    ]


class ChunkRetriever(BaseRetriever):
    """Retrieves the `k` best of `documents`, which are indexed once."""

    documents: list[Document]
    k: int = 4
    _index: ChunkIndex = PrivateAttr()

    def model_post_init(self, _: Any) -> None:
        self._index = ChunkIndex(
            [document.page_content for document in self.documents], blank="skip"
        )

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return found(self._index.search(query, self.k), self.documents)


class FolderRetriever(BaseRetriever):
    """Retrieves the `k` best files of a folder as they are now, each as its best passage, with path and lines."""

    root: str
    k: int = 4
    _index: FolderIndex = PrivateAttr()

    def model_post_init(self, _: Any) -> None:
        self._index = FolderIndex(self.root)

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [
            Document(one.chunk_txt, metadata={**one.metadata, "relevance_score": one.chunk_score})
            for one in self._index.search(query, self.k).best
        ]


class ChunkCompressor(BaseDocumentCompressor):
    """Keeps the `top_n` best of the documents that another retriever found, of these `max_tokens` in sentences."""

    top_n: int = 3
    max_tokens: int | None = None

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> list[Document]:
        best = found(
            search(query, [one.page_content for one in documents], self.top_n, blank="skip"),
            documents,
        )
        if self.max_tokens is None:
            return best
        kept = compress(query, [one.page_content for one in best], max_tokens=self.max_tokens)
        parts = groupby(kept, key=lambda sentence: sentence.original_index)
        return [
            best[n].model_copy(update={"page_content": " ".join(one.text for one in part)})
            for n, part in parts
        ]


if __name__ == "__main__":
    pages = [
        Document("Cats purr.", metadata={"page": 1}),
        Document("Dogs bark."),
        Document("Cats and dogs sleep."),
    ]
    print(ChunkRetriever(documents=pages, k=2).invoke("What do cats do?"))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "cats.md").write_text("Cats purr.\n")
        Path(folder, "dogs.md").write_text("Dogs bark.\n")
        print(FolderRetriever(root=folder, k=1).invoke("Who barks?"))
    print(ChunkCompressor(top_n=1).compress_documents(pages, "Who barks?"))
    print(ChunkCompressor(max_tokens=5).compress_documents(pages, "What do cats do?"))
