"""Search as a LangChain retriever, and as a document compressor behind any other retriever.

pip install relevance_gen langchain-core
python examples/langchain_adapter.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever
from pydantic import PrivateAttr

from relevance_gen import ChunkIndex, FolderIndex, SearchResponse, search


def found(response: SearchResponse, documents: Sequence[Document]) -> list[Document]:
    """Return the documents of the results, best first, each with its score in a copy of its metadata."""
    return [
        documents[one.original_index].model_copy(
            update={"metadata": {**documents[one.original_index].metadata, "relevance_score": one.chunk_score}}
        )
        for one in response.best
    ]


class ChunkRetriever(BaseRetriever):
    """Retrieves the `k` best of `documents`, which are indexed once."""

    documents: list[Document]
    k: int = 4
    _index: ChunkIndex = PrivateAttr()

    def model_post_init(self, _: Any) -> None:
        self._index = ChunkIndex([document.page_content for document in self.documents], blank="skip")

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
    """Keeps the `top_n` best of the documents that another retriever found, without an index."""

    top_n: int = 3

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> list[Document]:
        texts = [document.page_content for document in documents]
        return found(search(query, texts, self.top_n, blank="skip"), documents)


if __name__ == "__main__":
    pages = [Document("Cats purr.", metadata={"page": 1}), Document("Dogs bark."), Document("Cats and dogs sleep.")]
    print(ChunkRetriever(documents=pages, k=2).invoke("What do cats do?"))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "cats.md").write_text("Cats purr.\n")
        Path(folder, "dogs.md").write_text("Dogs bark.\n")
        print(FolderRetriever(root=folder, k=1).invoke("Who barks?"))
    print(ChunkCompressor(top_n=1).compress_documents(pages, "Who barks?"))
