"""Passages in Qdrant, by its client: a server, a cluster, or its local mode for tests.

Knows nothing of models: an embedder says only how long its vectors are, and who made them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, uuid5

from antiphon.retrieval.collection import (
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

_BATCH = 500  # points of a request: a server takes 32 MB


class QdrantIndex:
    """A collection of Qdrant, made when it is not there.

    ``location`` is a server's address (``http://…``), ``:memory:``, or a folder: the last two need no server.

    Only vectors are searched: `matching` finds nothing. A change of more than 500 passages is no one step. Threads may
    share it.

    Raises:
        ImportError: qdrant-client is not installed; says the command.
        ValueError: ``location`` is a mistaken address; the message does not repeat it.
        EngineUnavailable: the server does not answer, now or later.
        IndexMismatch: the collection holds vectors of another embedder.
    """

    def __init__(
        self,
        location: str,
        embedder: Embedder,
        collection: str = "passages",
        *,
        api_key: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        client = _import()
        is_url = location != ":memory:" and is_address(location)
        self._place = shown_address("Qdrant", location, ("http", "https")) if is_url else location
        self._name = collection
        self._dim = embedder.dim
        kind = "location" if is_url or location == ":memory:" else "path"
        options = {kind: location, "api_key": api_key, "timeout": round(timeout), "check_compatibility": False}
        with self._answering():
            self._client = client(**options)
            with closed_if_it_fails(self):
                self._make(embedder.fingerprint)

    def __len__(self) -> int:
        with self._answering():
            return int(self._client.count(self._name, exact=True).count)

    def nearest(self, vector: Vectors, k: int, where: Where | None = None) -> list[Passage]:
        """The ``k`` nearest passages."""
        query = normalized(vector[None, :], dim=self._dim)[0]
        with self._answering():
            points = self._client.query_points(
                self._name, query=query.tolist(), limit=checked_k(k, k), query_filter=_filter(where)
            ).points
        return [Passage(**point.payload["passage"], score=float(point.score)) for point in points]

    def matching(self, question: str, k: int, where: Where | None = None) -> list[Passage]:
        """Nothing: words are not indexed there."""
        return []

    def put(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Put passages in, or replace them; 500 at a time."""
        from qdrant_client.models import PointStruct

        passages, vectors = last_of_each_id(passages, normalized(vectors, dim=self._dim))
        with self._answering():
            for block in batches(list(zip(passages, vectors, strict=True)), _BATCH):
                points = [PointStruct(id=_id(p.id), vector=v.tolist(), payload=_payload(p)) for p, v in block]
                self._client.upsert(self._name, points, wait=True)

    def remove(self, ids: Sequence[str]) -> None:
        """Take out the passages of these ids."""
        with self._answering():
            for block in batches(list(ids), _BATCH):
                self._client.delete(self._name, points_selector=[_id(each) for each in block], wait=True)

    def close(self) -> None:
        """Close the connection; what was in memory is gone."""
        self._client.close()

    def _make(self, fingerprint: str) -> None:
        from qdrant_client.models import Distance, VectorParams

        if self._client.collection_exists(self._name):
            facts = self._client.get_collection(self._name).config.metadata or {}
            require_same_embedder(f"The collection {self._name!r}", str(facts.get("embedder", "")), fingerprint)
            return
        params = VectorParams(size=self._dim, distance=Distance.DOT)
        self._client.create_collection(self._name, vectors_config=params, metadata={"embedder": fingerprint})

    def _answering(self) -> AbstractContextManager[None]:
        from qdrant_client.http.exceptions import ResponseHandlingException

        return answering(f"Qdrant at {self._place}", (ResponseHandlingException,))


def _filter(where: Where | None) -> Any:
    from qdrant_client.models import FieldCondition, Filter, MatchValue

    conditions = checked_where(where).items()
    return Filter(must=[FieldCondition(key="facts", match=MatchValue(value=_fact(*each))) for each in conditions])


def _payload(passage: Passage) -> dict[str, Any]:
    facts = {**passage.metadata, "source": passage.source}
    return {"passage": passage_fields(passage), "facts": [_fact(*each) for each in facts.items()]}


def _fact(name: str, value: str) -> str:
    """A name and its value as one text, which a filter compares: a path into metadata could not name every name."""
    return json.dumps([name, value], ensure_ascii=False)


def _id(identifier: str) -> str:
    """Qdrant's own ids are UUIDs: one that follows from ours."""
    return str(uuid5(NAMESPACE_OID, identifier))


def _import() -> Any:
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise ImportError("Qdrant's client is not installed: pip install 'antiphon[qdrant]'") from error
    return QdrantClient
