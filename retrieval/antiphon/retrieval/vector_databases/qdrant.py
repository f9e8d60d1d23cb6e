"""Passages in Qdrant: a server, a cluster, or its local mode for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, uuid5

from antiphon.retrieval.collection import keep_last_of_each_id, require_same_embedder
from antiphon.retrieval.filters import Comparison, Filter, MetadataFilter, is_number, parse_filter
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.vector_databases.connection import (
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

_NEVER = ""  # no fact is empty
_BATCH = 500  # maximum points per request, because a server accepts 32 MB


class QdrantIndex:
    """A collection of Qdrant. It is created if it does not exist. Thread-safe.

    There is no keyword index: `keyword_search` returns nothing. A change of more than 500 passages is not atomic.

    Args:
        location: The address of a server (``http://…``), ``:memory:``, or a folder. The last two need no server.
        embedder: The embedder that makes the vectors.
        collection: The name of the collection.
        api_key: The API key of the server.
        timeout: Seconds to wait for an answer.

    Raises:
        ImportError: qdrant-client is not installed; the message has the command.
        ValueError: ``location`` is a malformed address; the message does not repeat it.
        DatabaseUnavailable: The server does not answer, now or in a later call.
        IndexMismatch: The collection contains vectors of another embedder.
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
        is_url = location != ":memory:" and looks_like_address(location)
        self._place = shown_address("Qdrant", location, ("http", "https")) if is_url else location
        self._name = collection
        self._dim = embedder.dim
        kind = "location" if is_url or location == ":memory:" else "path"
        options = {kind: location, "api_key": api_key, "timeout": round(timeout), "check_compatibility": False}
        with self._answering():
            self._client = client(**options)
            with close_on_error(self):
                self._make(embedder.fingerprint)

    def __len__(self) -> int:
        with self._answering():
            return int(self._client.count(self._name, exact=True).count)

    def vector_search(self, vector: Vectors, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return the ``k`` nearest passages. See `PassageIndex.vector_search`."""
        query = normalized(vector[None, :], dim=self._dim)[0]
        with self._answering():
            points = self._client.query_points(
                self._name, query=query.tolist(), limit=check_k(k, k), query_filter=_filter(where)
            ).points
        return [Passage(**point.payload["passage"], score=float(point.score)) for point in points]

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return nothing, because there is no keyword index. See `PassageIndex.keyword_search`."""
        return []

    def upsert(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Insert or replace passages, 500 at a time. See `Collection.upsert`."""
        from qdrant_client.models import PointStruct

        passages, vectors = keep_last_of_each_id(passages, normalized(vectors, dim=self._dim))
        with self._answering():
            for block in batches(list(zip(passages, vectors, strict=True)), _BATCH):
                points = [PointStruct(id=_id(p.id), vector=v.tolist(), payload=_payload(p)) for p, v in block]
                self._client.upsert(self._name, points, wait=True)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the passages with these ids."""
        with self._answering():
            for block in batches(list(ids), _BATCH):
                self._client.delete(self._name, points_selector=[_id(each) for each in block], wait=True)

    def close(self) -> None:
        """Close the connection; a collection in memory is lost."""
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

        return name_unreachable_server(f"Qdrant at {self._place}", (ResponseHandlingException,))


def _filter(where: MetadataFilter | None) -> Any:
    condition = parse_filter(where)
    return None if condition is None else _condition(condition)


def _condition(condition: Filter) -> Any:
    from qdrant_client import models

    if not isinstance(condition, Comparison):
        parts = [_condition(part) for part in condition.parts]
        if condition.operator == "$not":
            return models.Filter(must_not=parts)
        if not parts:
            parts = [models.FieldCondition(key="facts", match=models.MatchValue(value=_NEVER))]
            return models.Filter(must_not=parts) if condition.operator == "$and" else models.Filter(must=parts)
        return models.Filter(must=parts) if condition.operator == "$and" else models.Filter(should=parts)
    if condition.operator != "$eq":
        return _range(condition)
    if condition.value is None:
        null, known = (_has(_fact(condition.name, None)), _has(_presence(condition.name)))
        return models.Filter(should=[null, models.Filter(must_not=[known])])
    return models.Filter(must=[_has(_fact(condition.name, condition.value))])


def _has(fact: str) -> Any:
    from qdrant_client import models

    return models.FieldCondition(key="facts", match=models.MatchValue(value=fact))


def _range(condition: Comparison) -> Any:
    """Return the condition of an order, which Qdrant has for numbers and dates, but not for other texts."""
    from qdrant_client import models

    sign, value = condition.operator.removeprefix("$"), condition.value
    if is_number(value):
        order = models.FieldCondition(key="value", range=models.Range(**{sign: value}))
    elif moment := _moment(value):
        order = models.FieldCondition(key="date", range=models.DatetimeRange(**{sign: moment}))
    else:
        raise ValueError(
            f"{condition.operator} of {condition.name!r} is the text {value!r}; Qdrant orders numbers and dates only."
        )
    name = models.FieldCondition(key="name", match=models.MatchValue(value=condition.name))
    nested = models.Nested(key="orders", filter=models.Filter(must=[name, order]))
    return models.Filter(must=[models.NestedCondition(nested=nested)])


def _payload(passage: Passage) -> dict[str, Any]:
    fields = passage_fields(passage)
    facts, orders = [], []
    for name, value in {**fields["metadata"], "source": passage.source}.items():
        items = [value, *value] if isinstance(value, list) else [value]
        facts += [_fact(name, item) for item in items]
        facts += [_presence(name)] if value is not None else []
        orders += [{"name": name, "value": item} for item in items if is_number(item)]
        orders += [{"name": name, "date": moment.isoformat()} for item in items if (moment := _moment(item))]
    return {"passage": fields, "facts": facts, "orders": orders}


def _fact(name: str, value: Any) -> str:
    """Encode a name and its value as one string for filters; Qdrant's paths into metadata cannot express every name."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps([name, value], ensure_ascii=False, sort_keys=True)


def _presence(name: str) -> str:
    return json.dumps([name], ensure_ascii=False)


def _moment(value: Any) -> datetime | None:
    """Return the moment of a text that is an ISO 8601 date or time, else None; without a time zone it is in UTC."""
    if not isinstance(value, str) or not value[:4].isdigit() or "-" not in value:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _id(identifier: str) -> str:
    """Derive a UUID from a passage id, because Qdrant's ids are UUIDs."""
    return str(uuid5(NAMESPACE_OID, identifier))


def _import() -> Any:
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise ImportError("Qdrant's client is not installed: pip install 'antiphon[qdrant]'") from error
    return QdrantClient
