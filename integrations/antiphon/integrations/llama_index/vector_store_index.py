"""A LlamaIndex vector store as the index of Antiphon's retriever."""

from __future__ import annotations

from dataclasses import replace

from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

from antiphon.integrations.llama_index.nodes import passage_of
from antiphon.retrieval import MetadataFilter as RequiredValues
from antiphon.retrieval import Passage
from antiphon.retrieval.filters import Comparison, Filter, Junction, parse_filter
from antiphon.retrieval.vector_index.flat import Vectors

_OPERATORS = {
    "$eq": FilterOperator.EQ,
    "$gt": FilterOperator.GT,
    "$gte": FilterOperator.GTE,
    "$lt": FilterOperator.LT,
    "$lte": FilterOperator.LTE,
}
_CONDITIONS = {"$and": FilterCondition.AND, "$or": FilterCondition.OR, "$not": FilterCondition.NOT}


class VectorStorePassages:
    """Searches a vector store with the vectors of the retriever's embedder; there is no keyword search.

    Args:
        store: a vector store that stores its nodes' text. It must have been filled with the retriever's embedder;
            this cannot be checked.

    Raises:
        ValueError: the store does not store text.
    """

    has_cosines = False

    def __init__(self, store: BasePydanticVectorStore) -> None:
        if not store.stores_text:
            raise ValueError(f"{type(store).__name__} stores vectors only; use a store that stores text.")
        self._store = store

    def vector_search(self, vector: Vectors, k: int, where: RequiredValues | None = None) -> list[Passage]:
        """Return the ``k`` nearest nodes, best first, with the store's similarities.

        Args:
            vector: the query, shape (dim,).
            where: a filter that every node must match; it is converted to LlamaIndex's
                `MetadataFilters`.
        """
        query = VectorStoreQuery(query_embedding=vector.tolist(), similarity_top_k=k)
        query.filters = where if isinstance(where, MetadataFilters) else _filters(parse_filter(where))
        result = self._store.query(query)
        nodes = result.nodes or []
        scores = result.similarities or [1 - place / len(nodes) for place in range(len(nodes))]
        passages = zip(map(passage_of, nodes), scores, strict=True)
        return [replace(passage, score=float(score)) for passage, score in passages if passage is not None]

    def keyword_search(self, question: str, k: int, where: RequiredValues | None = None) -> list[Passage]:
        """Return nothing: a vector store has no keyword search."""
        return []


def _filters(condition: Filter | None) -> MetadataFilters | None:
    """Convert a filter to `MetadataFilters`; each store decides what equality with a list means."""
    if condition is None:
        return None
    part = _part(condition)
    return part if isinstance(part, MetadataFilters) else MetadataFilters(filters=[part])


def _part(condition: Filter) -> MetadataFilter | MetadataFilters:
    if isinstance(condition, Junction):
        equal = [each for each in condition.parts if isinstance(each, Comparison) and each.operator == "$eq"]
        values, names = [each.value for each in equal], {each.name for each in equal}
        # Equalities of one name become "in", which stores without nested filters accept, too.
        if condition.operator == "$or" and equal == [*condition.parts] and len(names) == 1 and None not in values:
            return MetadataFilter(key=names.pop(), value=values, operator=FilterOperator.IN)
        parts = [_part(each) for each in condition.parts]
        return MetadataFilters(filters=parts, condition=_CONDITIONS[condition.operator])
    if condition.value is None:
        return MetadataFilter(key=condition.name, value=None, operator=FilterOperator.IS_EMPTY)
    return MetadataFilter(key=condition.name, value=condition.value, operator=_OPERATORS[condition.operator])
