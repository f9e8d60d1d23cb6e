"""Passages in Milvus: from `milvus-lite` on one machine to a cluster, by the same client.

Knows nothing of models: an embedder says only how long its vectors are, and who made them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antiphon.retrieval.collection import (
    FIELDS,
    TIMEOUT,
    Where,
    answering,
    batches,
    checked_where,
    closed_if_it_fails,
    last_of_each_id,
    passage_fields,
    require_same_embedder,
)
from antiphon.retrieval.engines.address import is_address, shown_address
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.vectors import Vectors, checked_k, normalized

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from antiphon.retrieval.embed import Embedder

_SCHEMES = ("http", "https", "tcp", "unix")
_BATCH = 500  # rows of a request: a server takes 64 MB
_CONNECT_FAILED = 2  # of Milvus's codes
_DEEPEST = 16_384  # more hits Milvus does not give


class MilvusIndex:
    """A collection of Milvus, made when it is not there; ``uri`` is a server's address.

    The server chooses the vector index (AUTOINDEX); words are matched by its BM25 over titleless texts, unstemmed.
    What was put in is found at once (strong consistency); a change of more than 500 passages is no one step. Texts have
    at most 65,535 bytes, ids 512. Threads may share it.

    Raises:
        ImportError: pymilvus is not installed; says the command.
        ValueError: ``uri`` is no address; the message does not repeat it.
        EngineUnavailable: the server does not answer, now or later.
        IndexMismatch: the collection holds vectors of another embedder.
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
        self._place = uri if uri.endswith(".db") and not is_address(uri) else shown_address("Milvus", uri, _SCHEMES)
        self._timeout = timeout
        self._name = collection
        self._dim = embedder.dim
        with self._answering():
            self._client = client(uri=uri, token=token, timeout=timeout / 3)
            with closed_if_it_fails(self):
                self._make(embedder.fingerprint)

    def __len__(self) -> int:
        with self._answering():
            rows = self._client.query(
                self._name, filter="", output_fields=["count(*)"], consistency_level="Strong", timeout=self._timeout
            )
        return int(rows[0]["count(*)"])

    def nearest(self, vector: Vectors, k: int, where: Where | None = None) -> list[Passage]:
        """The ``k`` nearest passages, at most 16,384."""
        query = normalized(vector[None, :], dim=self._dim)
        return self._found(query, "vector", k, where, "IP")

    def matching(self, question: str, k: int, where: Where | None = None) -> list[Passage]:
        """The passages that share words with a question, best first, with Milvus's BM25."""
        return self._found([question], "words", k, where, "BM25") if question.strip() else []

    def put(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Put passages in, or replace them; 500 at a time."""
        passages, vectors = last_of_each_id(passages, normalized(vectors, dim=self._dim))
        with self._answering():
            for block in batches(list(zip(passages, vectors, strict=True)), _BATCH):
                rows = [passage_fields(passage) | {"vector": vector} for passage, vector in block]
                self._client.upsert(self._name, rows, timeout=self._timeout)

    def remove(self, ids: Sequence[str]) -> None:
        """Take out the passages of these ids."""
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

    def _found(self, data: Any, field: str, k: int, where: Where | None, metric: str) -> list[Passage]:
        with self._answering():
            hits = self._client.search(
                self._name,
                data=data,
                anns_field=field,
                limit=min(checked_k(k, k), _DEEPEST),
                filter=_expression(where),
                output_fields=list(FIELDS),
                search_params={"metric_type": metric},
                consistency_level="Strong",
                timeout=self._timeout,
            )[0]
        # The lite server gives BM25 the sign of a distance, a cluster that of a score.
        return [_passage(hit["entity"], abs(hit["distance"]) if field == "words" else hit["distance"]) for hit in hits]

    def _answering(self) -> AbstractContextManager[None]:
        from grpc import RpcError  # type: ignore[import-untyped]
        from pymilvus.exceptions import MilvusException  # type: ignore[import-untyped]

        return answering(f"Milvus at {self._place}", (MilvusException, RpcError), _is_gone)


def _is_gone(error: Exception) -> bool:
    """Whether an error came from the connection and not from the server itself."""
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


def _expression(where: Where | None) -> str:
    """A filter in Milvus's own language; texts are quoted as in JSON."""
    conditions = checked_where(where).items()
    fields = ("source" if name == "source" else f"metadata[{_quoted(name)}]" for name, _ in conditions)
    return " and ".join(f"{field} == {_quoted(value)}" for field, (_, value) in zip(fields, conditions, strict=True))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _passage(entity: dict[str, Any], score: float) -> Passage:
    return Passage(**{name: entity[name] for name in FIELDS}, score=float(score))


def _import() -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise ImportError("Milvus's client is not installed: pip install 'antiphon[milvus]'") from error
    return MilvusClient
