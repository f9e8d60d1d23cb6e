"""Passages in PostgreSQL with pgvector: an HNSW index over half-precision vectors, and full-text search."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any

from antiphon.retrieval.collection import keep_last_of_each_id, require_same_embedder
from antiphon.retrieval.filters import Comparison, Filter, MetadataFilter, is_number, json_metadata, parse_filter
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.vector_databases.connection import TIMEOUT, close_on_error, name_unreachable_server
from antiphon.retrieval.vector_index.flat import Vectors, check_k, normalized

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composed

    from antiphon.retrieval.embedders.protocol import Embedder

_SESSION = """
create extension if not exists vector;
set hnsw.iterative_scan = strict_order;
set hnsw.ef_search = 200;
"""
_TIMEOUT = "select set_config('statement_timeout', %s, false)"
_NO_STATEMENT_TIMEOUT = (
    "select set_config('lock_timeout', current_setting('statement_timeout'), true); set local statement_timeout = 0"
)
_SCHEMA = """
create table {table} (
    id text primary key, text text not null, source text not null, start integer not null, "end" integer not null,
    metadata jsonb not null, vector halfvec({dim}) not null,
    words tsvector generated always as (to_tsvector('english',
        coalesce(metadata->>'title', '') || ' ' || coalesce(metadata->>'column_names', '') || ' ' || text)) stored
);
create index on {table} using hnsw (vector halfvec_ip_ops);
create index on {table} using gin (words);
create index on {table} using gin (metadata jsonb_path_ops);
create index on {table} (source);
comment on table {table} is {made_by};
"""
_MADE_BY = "select to_regclass(%s) is not null, obj_description(to_regclass(%s), 'pg_class')"
_COLUMNS = 'id, text, source, start, "end", metadata'
_SIGNS = {"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_NEAREST = f"""
select {_COLUMNS}, -(vector <#> %(vector)s) from {{table}} where {{allowed}} order by vector <#> %(vector)s limit %(k)s
"""
_MATCHING = f"""
select {_COLUMNS}, ts_rank_cd(words, query, 1) as rank from {{table}}, to_tsquery('english', %(words)s) query
where words @@ query and {{allowed}} order by rank desc, id limit %(k)s
"""
_STAGING = "create temp table put (like {table}) on commit drop"
_COPY = f"copy put ({_COLUMNS}, vector) from stdin with (format binary)"
_TYPES = ("text", "text", "text", "int4", "int4", "jsonb", "halfvec")
_UPSERT = f"""
insert into {{table}} ({_COLUMNS}, vector) select {_COLUMNS}, vector from put
on conflict (id) do update set ({_COLUMNS}, vector) =
    (excluded.id, excluded.text, excluded.source, excluded.start, excluded."end", excluded.metadata, excluded.vector)
"""


class PgvectorIndex:
    """A table of PostgreSQL. It is created if it does not exist. Thread-safe.

    Vectors are stored in half precision, and the search is approximate (HNSW). Keyword search is PostgreSQL's English
    full-text search, ranked by cover density. A change is one transaction.

    Args:
        conninfo: The database: a URI, or key=value pairs.
        embedder: The embedder that makes the vectors.
        table: The name of the table.
        timeout: Seconds to wait for an answer.

    Raises:
        ImportError: psycopg or pgvector is not installed; the message has the command.
        ValueError: ``conninfo`` is malformed; the message does not repeat it.
        DatabaseUnavailable: The server does not answer, now or in a later call. Other errors are psycopg's.
        IndexMismatch: The table contains vectors of another embedder.
    """

    def __init__(self, conninfo: str, embedder: Embedder, table: str = "passages", *, timeout: float = TIMEOUT) -> None:
        _import()
        self._conninfo = conninfo
        self._server = _shown(conninfo)
        self._timeout = timeout
        self._table = table
        self._dim = embedder.dim
        self._open: Connection[Any] | None = None
        self._lock = RLock()
        with close_on_error(self):
            self._make(embedder.fingerprint)

    def __len__(self) -> int:
        with self._connection() as connection:
            return int(connection.execute(self._sql("select count(*) from {table}")).fetchall()[0][0])

    def vector_search(self, vector: Vectors, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return the ``k`` nearest passages, by cosine in half precision. See `PassageIndex.vector_search`."""
        from pgvector import HalfVector

        query = HalfVector(normalized(vector[None, :], dim=self._dim)[0])
        return self._found(_NEAREST, k, where, vector=query)

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return passages that share words with a question. See `PassageIndex.keyword_search`."""
        words = dict.fromkeys(re.findall(r"\w+", question.lower()))
        return self._found(_MATCHING, k, where, words=" | ".join(f"'{word}'" for word in words)) if words else []

    def upsert(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Insert or replace passages, all or none. See `Collection.upsert`."""
        from pgvector import HalfVector
        from psycopg.types.json import Jsonb

        passages, vectors = keep_last_of_each_id(passages, normalized(vectors, dim=self._dim))
        with self._connection() as connection, connection.transaction():
            # One statement writes all rows, which may take long; only waiting for locks has a timeout.
            connection.execute(_NO_STATEMENT_TIMEOUT)
            connection.execute(self._sql(_STAGING))
            with connection.cursor().copy(_COPY) as copy:
                copy.set_types(_TYPES)
                for each, vector in zip(passages, vectors, strict=True):
                    facts = (each.id, each.text, each.source, each.start, each.end, Jsonb(json_metadata(each)))
                    copy.write_row((*facts, HalfVector(vector)))
            connection.execute(self._sql(_UPSERT))

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the passages with these ids."""
        with self._connection() as connection:
            connection.execute(self._sql("delete from {table} where id = any(%s)"), [list(ids)])

    def close(self) -> None:
        """Close the connection; a later call opens another."""
        with self._lock:
            if self._open is not None:
                self._open.close()

    def _make(self, fingerprint: str) -> None:
        from psycopg.sql import Identifier, Literal

        with self._connection() as connection, connection.transaction():
            name = Identifier(self._table).as_string(connection)
            connection.execute(
                "select pg_advisory_xact_lock(hashtext(%s))", [name]
            )  # two processes may create the table at once
            is_there, made_by = connection.execute(_MADE_BY, [name, name]).fetchall()[0]
            if is_there:
                require_same_embedder(f"The table {name}", made_by or "", fingerprint)
            else:
                connection.execute(self._sql(_SCHEMA, dim=Literal(self._dim), made_by=Literal(fingerprint)))

    def _found(self, select: str, k: int, where: MetadataFilter | None, **values: Any) -> list[Passage]:
        from psycopg.sql import SQL

        condition = parse_filter(where)
        allowed = "true" if condition is None else _condition(condition, values)
        values["k"] = check_k(k, k)
        with self._connection() as connection:
            rows = connection.execute(self._sql(select, allowed=SQL(allowed)), values).fetchall()
        return [
            Passage(text, identifier, place, start, end, float(score), metadata)
            for identifier, text, place, start, end, metadata, score in rows
        ]

    def _sql(self, text: str, **values: Any) -> Composed:
        from psycopg.sql import SQL, Identifier

        return SQL(text).format(table=Identifier(self._table), **values)

    @contextmanager
    def _connection(self) -> Iterator[Connection[Any]]:
        """Yield the connection to one thread at a time; a broken one is opened again."""
        import psycopg

        with self._lock, name_unreachable_server(self._server, (psycopg.OperationalError,), _is_gone):
            if self._open is None or self._open.closed:
                self._open = self._connect()
            yield self._open

    def _connect(self) -> Connection[Any]:
        import psycopg
        from pgvector.psycopg import register_vector

        connection = psycopg.connect(
            self._conninfo,
            autocommit=True,
            connect_timeout=max(2, round(self._timeout / 3)),
            tcp_user_timeout=round(1000 * self._timeout),
        )
        connection.execute(
            _TIMEOUT, [str(round(1000 * self._timeout))]
        )  # set by a statement, because a connection option would replace the caller's options
        connection.execute(_SESSION)
        register_vector(connection)
        return connection


def _condition(condition: Filter, values: dict[str, Any]) -> str:
    """Return the SQL condition of a filter; its names and values are added to the parameters ``values``."""
    if not isinstance(condition, Comparison):
        parts = [f"({_condition(part, values)})" for part in condition.parts]
        if condition.operator == "$not":
            return f"not {parts[0]}"
        joined = " and ".join(parts) if condition.operator == "$and" else " or ".join(parts)
        return joined or ("true" if condition.operator == "$and" else "false")

    def parameter(value: Any) -> str:
        name = f"filter{len(values)}"
        values[name] = value
        return f"%({name})s"

    sign = _SIGNS[condition.operator]
    if condition.name == "source":
        is_text = isinstance(condition.value, str)
        return f'source collate "C" {sign} {parameter(condition.value)}' if is_text else "false"
    if condition.operator == "$eq":
        return _equality(condition, parameter)
    if is_number(condition.value):
        field, kind = "({field} #>> '{{}}')::numeric", "number"
    else:
        field, kind = "({field} #>> '{{}}') collate \"C\"", "string"
    wanted = parameter(condition.value)

    def test(json: str) -> str:
        compared = f"{field.replace('{field}', json)} {sign} {wanted}"
        return f"case jsonb_typeof({json}) when '{kind}' then {compared} else false end"

    json = f"metadata -> {parameter(condition.name)}"
    items = f"case jsonb_typeof({json}) when 'array' then {json} else '[]' end"
    return f"{test(json)} or exists (select 1 from jsonb_array_elements({items}) item where {test('item.value')})"


def _equality(condition: Comparison, parameter: Callable[[Any], str]) -> str:
    """Return the SQL condition that a field, or an item of its list, has a value."""
    from psycopg.types.json import Jsonb

    name, value = condition.name, condition.value
    json, in_list = f"metadata -> {parameter(name)}", f"metadata @> {parameter(Jsonb({name: [value]}))}"
    if value is None:
        return f"coalesce(jsonb_typeof({json}), 'null') = 'null' or {in_list}"
    if isinstance(value, list | dict):
        items = f"case jsonb_typeof({json}) when 'array' then {json} else '[]' end"
        wanted = parameter(Jsonb(value))
        return f"coalesce({json} = {wanted} or {wanted} in (select jsonb_array_elements({items})), false)"
    return f"metadata @> {parameter(Jsonb({name: value}))} or {in_list}"


def _shown(conninfo: str) -> str:
    """Return the server of a connection string, without secrets.

    Raises:
        ValueError: The connection string is malformed. libpq's own message would repeat parts of it.
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        facts = conninfo_to_dict(conninfo)
    except ProgrammingError:
        facts = {"port": "unknown"}
    port = str(facts.get("port", 5432))
    if not re.fullmatch(r"[\d,]+", port):
        raise ValueError(
            "The connection string of PostgreSQL cannot be read; it has the form "
            "postgresql://USER:PASSWORD@HOST:PORT/DB, with special characters percent-encoded, or key=value pairs "
            "(it is not repeated here, since it may hold a password)."
        )
    return f"PostgreSQL at {facts.get('host', 'its local socket')}:{port}"


def _is_gone(error: Exception) -> bool:
    """Return whether an error means that the connection broke or the server is shutting down."""
    state: str | None = getattr(error, "sqlstate", None)
    return state is None or state.startswith(("08", "57P"))


def _import() -> None:
    try:
        import pgvector  # noqa: F401
        import psycopg  # noqa: F401
    except ImportError as error:
        raise ImportError("pgvector's client is not installed: pip install 'antiphon[pgvector]'") from error
