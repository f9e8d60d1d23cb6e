"""A LlamaIndex vector store in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.simple import DEFAULT_VECTOR_STORE, NAMESPACE_SEP
from llama_index.core.vector_stores.types import (
    DEFAULT_PERSIST_DIR,
    DEFAULT_PERSIST_FNAME,
    BasePydanticVectorStore,
    FilterCondition,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import build_metadata_filter_fn
from pydantic import BaseModel, PrivateAttr

from antiphon.integrations.llama_index.persistence import load, save
from antiphon.integrations.vector_table import VectorTable


class AntiphonVectorStore(BasePydanticVectorStore):
    """Nodes in memory with exact cosine search; thread-safe.

    It supports all of LlamaIndex's filter operators and conditions, also nested, ``doc_ids`` and ``node_ids``. Adding
    a node with an existing id replaces it.
    """

    stores_text: bool = True
    _table: VectorTable[BaseNode] = PrivateAttr(default_factory=VectorTable)

    @classmethod
    def from_persist_dir(
        cls, persist_dir: str = DEFAULT_PERSIST_DIR, namespace: str = DEFAULT_VECTOR_STORE, fs: Any = None
    ) -> Self:
        """Load the store that a storage context persisted in a folder.

        Pass it to ``StorageContext.from_defaults(persist_dir=..., vector_store=...)``.

        Args:
            persist_dir: the folder.
            namespace: the store's name in the folder.
            fs: an fsspec file system; None is the local one. Errors are those of `from_persist_path`.
        """
        return cls.from_persist_path(str(Path(persist_dir) / f"{namespace}{NAMESPACE_SEP}{DEFAULT_PERSIST_FNAME}"), fs)

    @classmethod
    def from_persist_path(cls, persist_path: str, fs: Any = None) -> Self:
        """Load the store of a file.

        Args:
            persist_path: the file.
            fs: an fsspec file system; None is the local one.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file is damaged or of another kind.
        """
        nodes, vectors = load(persist_path, fs)
        store = cls()
        if nodes:
            store._table.put([node.node_id for node in nodes], nodes, vectors)
        return store

    def persist(self, persist_path: str, fs: Any = None) -> None:
        """Write the store to a file atomically, replacing it. See `from_persist_path`."""
        save(self._table.rows(), persist_path, fs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        BaseModel.__setstate__(self, state)  # LlamaIndex's own method would create an empty store

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex saves it."""
        return "AntiphonVectorStore"

    @property
    def client(self) -> VectorTable[BaseNode]:
        """The table of nodes and vectors."""
        return self._table

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes with their embeddings, and return their ids.

        Raises:
            ValueError: a node has no embedding.
        """
        ids = [node.node_id for node in nodes]
        if ids:
            vectors = np.array([node.get_embedding() for node in nodes], np.float32)
            self._table.put(ids, [node.model_copy(deep=True) for node in nodes], vectors)
        return ids

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Remove the nodes of a document. See `BasePydanticVectorStore.delete`."""
        self._table.remove(each for each, node in self._table.items() if node.ref_doc_id == ref_doc_id)

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Remove the nodes with these ids that pass the filters.

        Args:
            node_ids: ids; None accepts all.
            filters: LlamaIndex filters; None accepts all.
            **delete_kwargs: ignored.

        Raises:
            ValueError: neither is given; `clear` removes everything.
        """
        if node_ids is None and filters is None:
            raise ValueError("Neither node_ids nor filters are given; to remove every node, call clear().")
        wanted = _wanted(node_ids, None, filters)
        self._table.remove(each for each, node in self._table.items() if wanted(each, node))

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Return the nodes with these ids that pass the filters; None accepts all."""
        wanted = _wanted(node_ids, None, filters)
        return [_copy(node) for each, node in self._table.items() if wanted(each, node)]

    def clear(self) -> None:
        """Remove every node."""
        self._table.remove(each for each, _ in self._table.items())

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Return the nearest nodes with their cosines, best first.

        Raises:
            ValueError: the query has no vector, or another mode than "default".
        """
        if query.mode != VectorStoreQueryMode.DEFAULT:
            raise ValueError(f"The query mode is {query.mode.value!r}; this store supports 'default' only.")
        if query.query_embedding is None:
            raise ValueError("The query has no vector; give the index an embed_model, such as AntiphonEmbedding.")
        # An index over a store that stores texts passes an empty list of node ids, which means any node.
        node_ids, doc_ids = query.node_ids or None, query.doc_ids or None
        wanted = _wanted(node_ids, doc_ids, query.filters) if node_ids or doc_ids or query.filters else None
        found = self._table.nearest(query.query_embedding, query.similarity_top_k, wanted)
        return VectorStoreQueryResult(
            nodes=[_copy(hit.item) for hit in found],
            similarities=[hit.score for hit in found],
            ids=[hit.id for hit in found],
        )


def _wanted(
    node_ids: Sequence[str] | None, doc_ids: Sequence[str] | None, filters: MetadataFilters | None
) -> Callable[[str, BaseNode], bool]:
    nodes = None if node_ids is None else set(node_ids)
    documents = None if doc_ids is None else set(doc_ids)

    def is_wanted(identifier: str, node: BaseNode) -> bool:
        if nodes is not None and identifier not in nodes:
            return False
        if documents is not None and node.ref_doc_id not in documents:
            return False
        return filters is None or _passes(node, filters)

    return is_wanted


def _passes(node: BaseNode, wanted: MetadataFilters | MetadataFilter) -> bool:
    """Return whether a node passes a filter; LlamaIndex itself evaluates single filters, but no nested ones."""
    if not isinstance(wanted, MetadataFilters):
        alone = MetadataFilters(filters=[wanted])
        return build_metadata_filter_fn(lambda _: node.metadata, alone)(node.node_id)
    if not wanted.filters:
        return True
    results = [_passes(node, each) for each in wanted.filters]
    if wanted.condition == FilterCondition.NOT:
        return not any(results)
    return any(results) if wanted.condition == FilterCondition.OR else all(results)


def _copy(node: BaseNode) -> BaseNode:
    """Copy a node, so that the caller may change it."""
    return node.model_copy(deep=True)
