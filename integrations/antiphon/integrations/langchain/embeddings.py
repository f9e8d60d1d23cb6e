"""Embeddings of LangChain that are one of Antiphon's embedders."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from antiphon.retrieval import Embedder, load_embedder


class AntiphonEmbeddings(Embeddings):
    """Vectors of length 1 from an embedder, or from the one of a name: "auto", "minilm", "bge-m3" or a model's name.

    Raises:
        ValueError: no embedder has that name, or its files cannot be had.
        ImportError: the package that holds it is not installed; says the command.
    """

    def __init__(self, embedder: Embedder | str = "auto", *, device: str | None = None) -> None:
        self.embedder = load_embedder(embedder, device) if isinstance(embedder, str) else embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text that is searched."""
        vectors: list[list[float]] = self.embedder.embed_documents(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of a question that searches."""
        vector: list[float] = self.embedder.embed_queries([text])[0].tolist()
        return vector
