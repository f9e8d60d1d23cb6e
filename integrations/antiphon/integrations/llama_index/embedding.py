"""An embedding of LlamaIndex that is one of Antiphon's embedders."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import BaseModel, PrivateAttr

from antiphon.integrations.pickled import check_picklable, shared
from antiphon.retrieval import Embedder, load_embedder


class AntiphonEmbedding(BaseEmbedding):
    """Vectors of length 1 from an embedder, or from the one of a name: "auto", "minilm", "bge-m3" or a model's name.

    Raises:
        ValueError: no embedder has that name, or its files cannot be had.
        ImportError: the package that holds it is not installed; says the command.
    """

    _embedder: Embedder = PrivateAttr()

    def __init__(self, embedder: Embedder | str = "auto", *, device: str | None = None, **kwargs: Any) -> None:
        found = load_embedder(embedder, device) if isinstance(embedder, str) else embedder
        super().__init__(model_name=found.name, **kwargs)
        self._embedder = found

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex saves it under."""
        return "AntiphonEmbedding"

    def __getstate__(self) -> dict[str, Any]:
        check_picklable(self._embedder, self, "AntiphonEmbedding(name)")
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        BaseModel.__setstate__(self, state)  # LlamaIndex's own would resolve an embedder again

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return BaseModel.__deepcopy__(self, shared(self._embedder, memo))

    @property
    def embedder(self) -> Embedder:
        """The embedder that makes the vectors."""
        return self._embedder

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._embedder.embed_queries([query])[0].tolist()
        return vector

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._embedder.embed_documents(texts).tolist()
        return vectors

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
