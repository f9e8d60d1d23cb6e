"""An embedder as LangChain embeddings."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from antiphon.retrieval import Embedder, load_embedder


class AntiphonEmbeddings(Embeddings):
    """An embedder as LangChain embeddings; vectors have the length 1.

    Args:
        embedder: an embedder, or "auto", "minilm", "bge-m3" or a model's name.
        device: torch device of a named embedder; None selects it automatically.

    Raises:
        ValueError: no embedder has that name, or its files are not available.
        ImportError: the package of the embedder is not installed.
    """

    def __init__(self, embedder: Embedder | str = "auto", *, device: str | None = None) -> None:
        self.embedder = load_embedder(embedder, device) if isinstance(embedder, str) else embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one unit vector per document."""
        vectors: list[list[float]] = self.embedder.embed_documents(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Return the unit vector of a query."""
        vector: list[float] = self.embedder.embed_queries([text])[0].tolist()
        return vector
