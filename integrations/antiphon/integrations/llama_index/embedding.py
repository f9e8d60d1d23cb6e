"""An embedder as a LlamaIndex embedding."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Self

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import BaseModel, PrivateAttr

from antiphon.integrations.pickling import SharedPart
from antiphon.retrieval import Embedder, load_embedder


class AntiphonEmbedding(SharedPart, BaseEmbedding):
    """An embedder as a LlamaIndex embedding; vectors have the length 1.

    Args:
        embedder: an embedder, or "auto", "minilm", "bge-m3" or a model's name.
        device: torch device of a named embedder; None selects it automatically.

    Raises:
        ValueError: no embedder has that name, or its files are not available.
        ImportError: the package of the embedder is not installed.
    """

    shared_part: ClassVar = "_embedder"
    pickling_remedy: ClassVar = "AntiphonEmbedding(name)"
    _embedder: Embedder = PrivateAttr()

    def __init__(self, embedder: Embedder | str = "auto", *, device: str | None = None, **kwargs: Any) -> None:
        found = load_embedder(embedder, device) if isinstance(embedder, str) else embedder
        super().__init__(model_name=found.name, **kwargs)
        self._embedder = found

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex saves the class."""
        return "AntiphonEmbedding"

    def __setstate__(self, state: dict[str, Any]) -> None:
        BaseModel.__setstate__(self, state)  # LlamaIndex's own method would load an embedder again

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Return the embedding that `to_dict` described; its embedder is loaded by name."""
        fields = {name: value for name, value in {**data, **kwargs}.items() if name != "class_name"}
        return cls(fields.pop("model_name"), **fields)

    @property
    def embedder(self) -> Embedder:
        """The embedder."""
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
