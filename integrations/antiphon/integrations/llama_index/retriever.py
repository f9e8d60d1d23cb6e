"""Antiphon's retriever as a LlamaIndex retriever."""

from __future__ import annotations

import asyncio
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle

from antiphon.integrations.llama_index.nodes import node_of
from antiphon.integrations.pickling import SharedPart
from antiphon.pipelines import Searcher
from antiphon.retrieval import Retriever
from antiphon.retrieval.filters import parse_filter


class AntiphonRetriever(SharedPart, BaseRetriever):
    """Searches an index (embed, search, rerank) and returns nodes with scores.

    Args:
        where: a `MetadataFilter`, or LlamaIndex's `MetadataFilters`, that every node must match;
            ``source`` is the document's name.
    """

    shared_part: ClassVar = "searcher"
    pickling_remedy: ClassVar = "AntiphonRetriever.open(folder)"

    def __init__(self, retriever: Searcher, *, k: int = 5, where: Any = None, **kwargs: Any) -> None:
        parse_filter(where)
        self.searcher = retriever
        self.k = k
        self.where = where
        super().__init__(**kwargs)

    @classmethod
    def open(cls, folder: str | Path, *, k: int = 5, where: Any = None, **settings: Any) -> AntiphonRetriever:
        """Open the index in a folder.

        Args:
            **settings: arguments of `Retriever.open`, which also describes the errors.
        """
        return cls(Retriever.open(folder, **settings), k=k, where=where)

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return copy(self)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        narrowed: dict[str, Any] = {"where": self.where} if self.where else {}
        found = self.searcher.search(query_bundle.query_str, self.k, **narrowed)
        return [node_of(passage) for passage in found]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)
