"""Passages in Milvus, from `milvus-lite` on one machine to a cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antiphon.retrieval.collection import keep_last_of_each_id, require_same_embedder
from antiphon.retrieval.filters import Comparison, Filter, MetadataFilter, parse_filter
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.vector_databases.connection import (
    FIELDS,
    TIMEOUT,
    batches,
    close_on_error,
    looks_like_address,
    name_unreachable_server,
    passage_fields,
    shown_address,
)
from antiphon.retrieval.vector_index.flat import Vectors, check_k, normalized

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from antiphon.retrieval.embedders.protocol import Embedder

_SCHEMES = ("http", "https", "tcp", "unix")
_BATCH = 500  # maximum rows per request, because a server accepts 64 MB
_CONNECT_FAILED = 2  # Milvus's error code of a failed connection
_SIGNS = {"$eq": "==", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_ALWAYS = "start >= 0"
_MOST_HITS = 16_384  # the limit of Milvus


class MilvusIndex:
    """A collection of Milvus. It is created if it does not exist. Thread-safe.

    The server chooses the vector index (AUTOINDEX). Keyword search is Milvus's BM25 over texts without headings,
    without stemming. Inserted passages are found at once (strong consistency). A change of more than 500 passages is
    not atomic. Texts are limited to 65,535 bytes, ids to 512. If a field has values of several types, such as numbers
    and texts, ``$not`` and equality can differ from other indexes.

    Args:
        uri: The address of a server, such as ``http://127.0.0.1:19530``.
        embedder: The embedder that makes the vectors.
        collection: The name of the collection.
        token: The token of the server, or ``user:password``.
        timeout: Seconds to wait for an answer.

    Raises:
        ImportError: pymilvus is not installed; the message has the command.
        ValueError: ``uri`` is malformed; the message does not repeat it.
        DatabaseUnavailable: The server does not answer, now or in a later call.
        IndexMismatch: The collection contains vectors of another embedder.
    """

    def __init__(
        self,
        uri: str,
        embedder: Embedder,
        collection: str = "passages",
        *,
        token: str = "",
        timeout: float = TIMEOUT,
    ) -> None:
        client = _import()
        self._place = (
            uri if uri.endswith(".db") and not looks_like_address(uri) else shown_address("Milvus", uri, _SCHEMES)
        )
        self._timeout = timeout
        self._name = collection
        self._dim = embedder.dim
        with self._answering():
            self._client = client(uri=uri, token=token, timeout=timeout / 3)
            with close_on_error(self):
                self._make(embedder.fingerprint)

    def __len__(self) -> int:
        with self._answering():
            rows = self._client.query(
                self._name, filter="", output_fields=["count(*)"], consistency_level="Strong", timeout=self._timeout
            )
        return int(rows[0]["count(*)"])

    def vector_search(self, vector: Vectors, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return the ``k`` nearest passages, at most 16,384. See `PassageIndex.vector_search`."""
        query = normalized(vector[None, :], dim=self._dim)
        return self._found(query, "vector", k, where, "IP")

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return passages that share words with a question, by BM25. See `PassageIndex.keyword_search`."""
        return self._found([question], "words", k, where, "BM25") if question.strip() else []

    def upsert(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Insert or replace passages, 500 at a time. See `Collection.upsert`."""
        passages, vectors = keep_last_of_each_id(passages, normalized(vectors, dim=self._dim))
        with self._answering():
            for block in batches(list(zip(passages, vectors, strict=True)), _BATCH):
                rows = [passage_fields(passage) | {"vector": vector} for passage, vector in block]
                self._client.upsert(self._name, rows, timeout=self._timeout)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the passages with these ids."""
        with self._answering():
            for block in batches(list(ids), _BATCH):
                self._client.delete(self._name, ids=list(block), timeout=self._timeout)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _make(self, fingerprint: str) -> None:
        if self._client.has_collection(self._name, timeout=self._timeout):
            facts = self._client.describe_collection(self._name, timeout=self._timeout)
            made_by = facts.get("properties", {}).get("embedder", "")
            require_same_embedder(f"The collection {self._name!r}", made_by, fingerprint)
            self._client.load_collection(self._name, timeout=self._timeout)
            return
        params = self._client.prepare_index_params()
        params.add_index("vector", index_type="AUTOINDEX", metric_type="IP")
        params.add_index("words", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
        self._client.create_collection(
            self._name,
            schema=_schema(self._dim),
            index_params=params,
            properties={"embedder": fingerprint},
            timeout=self._timeout,
        )

    def _found(self, data: Any, field: str, k: int, where: MetadataFilter | None, metric: str) -> list[Passage]:
        with self._answering():
            hits = self._client.search(
                self._name,
                data=data,
                anns_field=field,
                limit=min(check_k(k, k), _MOST_HITS),
                filter=_expression(where),
                output_fields=list(FIELDS),
                search_params={"metric_type": metric},
                consistency_level="Strong",
                timeout=self._timeout,
            )[0]
        # The lite server returns BM25 as a negative distance, a cluster as a positive score.
        return [_passage(hit["entity"], abs(hit["distance"]) if field == "words" else hit["distance"]) for hit in hits]

    def _answering(self) -> AbstractContextManager[None]:
        from grpc import RpcError  # type: ignore[import-untyped]
        from pymilvus.exceptions import MilvusException  # type: ignore[import-untyped]

        return name_unreachable_server(f"Milvus at {self._place}", (MilvusException, RpcError), _is_gone)


def _is_gone(error: Exception) -> bool:
    """Return whether an error comes from the connection and not from the server itself."""
    from grpc import RpcError
    from pymilvus.exceptions import ConnectError, MilvusUnavailableException

    causes: list[BaseException | None] = [error, error.__cause__, error.__context__]
    if any(isinstance(each, RpcError | ConnectError | MilvusUnavailableException) for each in causes):
        return True
    return getattr(error, "code", 0) == _CONNECT_FAILED


def _schema(dim: int) -> Any:
    from pymilvus import (  # type: ignore[import-untyped]
        DataType,
        Function,
        FunctionType,
        MilvusClient,
    )

    schema = MilvusClient.create_schema(auto_id=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=512)
    schema.add_field("text", DataType.VARCHAR, max_length=65_535, enable_analyzer=True)
    schema.add_field("source", DataType.VARCHAR, max_length=65_535)
    schema.add_field("start", DataType.INT64)
    schema.add_field("end", DataType.INT64)
    schema.add_field("metadata", DataType.JSON)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
    schema.add_field("words", DataType.SPARSE_FLOAT_VECTOR)
    bm25 = Function("bm25", FunctionType.BM25, input_field_names=["text"], output_field_names=["words"])
    schema.add_function(bm25)
    return schema


def _expression(where: MetadataFilter | None) -> str:
    """Return a filter in Milvus's language; strings are quoted as in JSON."""
    condition = parse_filter(where)
    return "" if condition is None else _condition(condition)


def _condition(condition: Filter) -> str:
    if not isinstance(condition, Comparison):
        parts = [f"({_condition(part)})" for part in condition.parts]
        if condition.operator == "$not":
            return f"not {parts[0]}"
        word, empty = ("and", _ALWAYS) if condition.operator == "$and" else ("or", f"not ({_ALWAYS})")
        return f" {word} ".join(parts) or empty
    sign, value = _SIGNS[condition.operator], _quoted(condition.value)
    if condition.name == "source":
        return f"source {sign} {value}" if isinstance(condition.value, str) else f"not ({_ALWAYS})"
    field = f"metadata[{_quoted(condition.name)}]"
    if condition.value is None:
        return f"not (exists {field})"
    if isinstance(condition.value, list | dict):
        raise TypeError(f"Milvus cannot compare {condition.name!r} with {condition.value!r}; ask for single values.")
    # Comparisons of a missing field are null, so that `not` would not be true.
    equal = f" or json_contains({field}, {value})" if condition.operator == "$eq" else ""
    return f"exists {field} and ({field} {sign} {value}{equal})"


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _passage(entity: dict[str, Any], score: float) -> Passage:
    return Passage(**{name: entity[name] for name in FIELDS}, score=float(score))


def _import() -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise ImportError("Milvus's client is not installed: pip install 'antiphon[milvus]'") from error
    return MilvusClient
