"""A table of PostgreSQL with pgvector: an HNSW index over half-precision vectors, and full-text search."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from antiphon.retrieval.collection import keep_last_of_each_id, require_embedder
from antiphon.retrieval.document_role import keyword_fields
from antiphon.retrieval.errors import DatabaseError, DatabaseUnavailable, IndexMismatch, IndexNotFound
from antiphon.retrieval.filters import MetadataFilter, json_metadata, parse_filter
from antiphon.retrieval.keywords import search_terms
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.postgres.address import PostgresAddress, malformed
from antiphon.retrieval.postgres.filter_sql import sql_condition
from antiphon.retrieval.source_file import SOURCE_FILE, SourceFile
from antiphon.retrieval.vector_index.flat import Vectors, check_k, normalized

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composed

    from antiphon.retrieval.embedders.protocol import Embedder

_DOCUMENTS = f"""
select source, count(*), (array_agg(metadata -> '{SOURCE_FILE}'))[1] from {{table}}
group by source order by source collate "C"
"""

TIMEOUT = 30.0
"""Seconds to wait for an answer. Connecting may take a third of this time."""

_FORMAT = 1
_SAMPLE = 2_000  # passages; see `PostgresIndex.sample`
_BLOCK = 1_000  # texts in one query
_SESSION = """
select set_config('statement_timeout', %s, false), set_config('hnsw.iterative_scan', 'strict_order', false),
       set_config('hnsw.ef_search', '200', false)
"""
_NO_STATEMENT_TIMEOUT = """
select set_config('lock_timeout', current_setting('statement_timeout'), true),
       set_config('statement_timeout', '0', true)
"""
_LOCK = "select pg_advisory_lock(hashtext(%s))"
_UNLOCK = "select pg_advisory_unlock(hashtext(%s))"
_LOCK_UNTIL_COMMIT = "select pg_advisory_xact_lock(hashtext(%s))"
_SCHEMA = """
create extension if not exists vector;
create table {table} (
    id text primary key, text text not null, source text not null, start integer not null, "end" integer not null,
    metadata jsonb not null, vector halfvec({dim}) not null, words tsvector not null
);
create index on {table} using hnsw (vector halfvec_ip_ops);
create index on {table} using gin (words);
create index on {table} using gin (metadata jsonb_path_ops);
create index on {table} using hash (source);
create index on {table} using hash (text);
comment on table {table} is {facts};
"""
_FACTS = "select to_regclass(%(name)s) is not null, obj_description(to_regclass(%(name)s), 'pg_class')"
_FIELDS = 'id, text, source, start, "end", metadata'
_NEAREST = f"""
select {_FIELDS}, -(vector <#> %(vector)s::real[]::halfvec) from {{table}} where {{allowed}}
order by vector <#> %(vector)s::real[]::halfvec limit %(k)s
"""
_MATCHING = f"""
select {_FIELDS}, ts_rank_cd(words, query, 1) as rank from {{table}}, to_tsquery('english', %(words)s) query
where words @@ query and {{allowed}} order by rank desc, id limit %(k)s
"""
_STAGING = """
create temp table put (
    id text, text text, source text, start integer, "end" integer, metadata jsonb, vector real[], keywords text
) on commit drop
"""
_COPY = "copy put from stdin with (format binary)"
_TYPES = ("text", "text", "text", "int4", "int4", "jsonb", "float4[]", "text")
_COUNT = "select count(*) from {table} where id = any(%s)"
_OUTDATED = """
delete from {table} old where source = any(%s) and id <> all(%s) and not exists (select from put where put.id = old.id)
"""
_UPSERT = f"""
insert into {{table}} ({_FIELDS}, vector, words) select {_FIELDS}, vector::halfvec, to_tsvector('english', keywords)
from put on conflict (id) do update set ({_FIELDS}, vector, words) = (excluded.id, excluded.text, excluded.source,
    excluded.start, excluded."end", excluded.metadata, excluded.vector, excluded.words)
"""

Result = TypeVar("Result")


class PostgresIndex:
    """The passages in a table of PostgreSQL. Thread-safe.

    Vectors are stored in half precision, and their search is approximate (HNSW). Keyword search is
    PostgreSQL's English full-text search, ranked by cover density. A change is one transaction, and
    every process sees it in its next search. A broken connection is opened again.

    Args:
        url: The address, ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE?table=NAME``.
        embedder: The embedder that makes the vectors, and a missing table. None: the table must exist.
        timeout: Seconds to wait for an answer.
        dry_run: Do not create a missing table, only check that it can be created.

    Attributes:
        location: The address without user and password.
        embedder, fingerprint: Name and fingerprint of the embedder that made the vectors.

    Raises:
        ImportError: psycopg is not installed; the message has the command.
        ValueError: The address is malformed; the message does not repeat the address.
        DatabaseUnavailable: The server does not answer or refuses the connection; later calls raise this, too.
        DatabaseError: The server refuses a statement, or the extension pgvector is missing.
        IndexNotFound: The table does not exist.
        IndexMismatch: Another embedder made the table's vectors, or the table contains something else.
    """

    def __init__(
        self, url: str, embedder: Embedder | None = None, *, timeout: float = TIMEOUT, dry_run: bool = False
    ) -> None:
        try:
            import psycopg  # noqa: F401
        except ImportError as error:
            raise ImportError("PostgreSQL's client is not installed: pip install 'antiphon[postgres]'") from error
        self._address = PostgresAddress.parse(url)
        self._timeout = timeout
        self._open: Connection[Any] | None = None
        self._lock = RLock()
        self.location = self._address.shown
        facts = self._run(self._facts)
        self.exists = facts is not None
        if facts is None:
            if embedder is None:
                raise self._not_found()
            facts = self._run(lambda connection: self._create(connection, embedder, dry_run))
        self.embedder = str(facts["embedder"])
        self.fingerprint = str(facts["fingerprint"])
        self.dim = int(facts["dim"])
        if embedder is not None:
            require_embedder(self.location, self.embedder, self.fingerprint, embedder, "another table (?table=NAME)")

    def __len__(self) -> int:
        return int(self._rows("select count(*) from {table}")[0][0])

    def vector_search(self, vector: Vectors, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return the ``k`` nearest passages, by cosine in half precision. See `PassageIndex.vector_search`."""
        query = normalized(vector[None, :], dim=self.dim)[0]
        return self._found(_NEAREST, k, where, vector=query.tolist())

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return passages that share words with a question. See `PassageIndex.keyword_search`."""
        words = " | ".join(f"'{word}'" for word in dict.fromkeys(search_terms(question)))
        return self._found(_MATCHING, k, where, words=words) if words else []

    def passage(self, identifier: str) -> Passage | None:
        """Return the passage with this id, or None."""
        rows = self._rows(f"select {_FIELDS} from {{table}} where id = %s", [identifier])
        return _passage(*rows[0]) if rows else None

    def ids_of(self, source: str) -> list[str]:
        """Return the ids of the passages of a source, in the order of the document."""
        rows = self._rows('select id from {table} where source = %s order by start, "end", id', [source])
        return [identifier for (identifier,) in rows]

    def sources(self) -> dict[str, int]:
        """Return, for each source, its number of passages. The result is sorted by source."""
        return {name: count for name, count, _ in self._rows(_DOCUMENTS)}

    def documents(self) -> dict[str, tuple[int, SourceFile | None]]:
        """Return, for each source, its number of passages and its file; sorted by source."""
        return {name: (count, SourceFile.of({SOURCE_FILE: file})) for name, count, file in self._rows(_DOCUMENTS)}

    def passages_of(self, sources: Sequence[str]) -> list[Passage]:
        """Return all passages of these sources."""
        rows = self._rows(f"select {_FIELDS} from {{table}} where source = any(%s)", [list(sources)])
        return [_passage(*row) for row in rows]

    def vectors_of(self, passages: Sequence[Passage]) -> dict[str, Vectors]:
        """Return the stored vectors of those passages whose texts are in the table.

        The keys of the result are the embedded texts, which include headings.
        """
        wanted = {passage.text_with_headings for passage in passages}
        texts = list(dict.fromkeys(passage.text for passage in passages))
        known: dict[str, Vectors] = {}
        for first in range(0, len(texts), _BLOCK):
            block = texts[first : first + _BLOCK]
            rows = self._rows(f"select {_FIELDS}, vector::real[] from {{table}} where text = any(%s)", [block])
            for *fields, vector in rows:
                if (text := _passage(*fields).text_with_headings) in wanted:
                    known[text] = normalized(np.array([vector], np.float32))[0]
        return known

    def sample(self) -> list[Passage]:
        """Return the first 2,000 passages by id: a random sample, because ids are digests."""
        rows = self._rows(f"select {_FIELDS} from {{table}} order by id limit {_SAMPLE}")
        return [_passage(*row) for row in rows]

    def lines(self) -> list[str]:
        """Return a description of the index as lines of text."""
        return [
            f"{len(self):,} vectors of {self.dim:,} numbers in {self.location}",
            f"embedder {self.embedder}",
            "approximate search by pgvector: HNSW over half precision; its recall is not measured",
        ]

    def upsert(self, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Insert or replace passages, all or none. See `Collection.upsert`."""
        self.replace_documents([], passages, vectors)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the passages with these ids."""
        self._run(lambda connection: connection.execute(self._sql("delete from {table} where id = any(%s)"), [[*ids]]))

    def replace_documents(
        self, sources: Sequence[str], passages: Sequence[Passage], vectors: Vectors, *, unchanged: Sequence[str] = ()
    ) -> None:
        """In one transaction, insert or replace passages, and remove all other passages of ``sources``.

        Args:
            vectors: The vectors of ``passages``, of shape (passages, dim).
            unchanged: The ids of the passages of ``sources`` that are kept unchanged.

        Raises:
            BlockingIOError: Another process has removed one of the unchanged passages.
        """
        passages, vectors = keep_last_of_each_id(passages, normalized(vectors, dim=self.dim))
        rows = [_record(passage, vector) for passage, vector in zip(passages, vectors.tolist(), strict=True)]

        def write(connection: Connection[Any]) -> None:
            with connection.transaction():
                # Writing all rows may take long; only waiting for locks has a timeout.
                connection.execute(_NO_STATEMENT_TIMEOUT)
                connection.execute(_LOCK_UNTIL_COMMIT, [self.location])
                connection.execute(_STAGING)
                with connection.cursor().copy(_COPY) as copy:
                    copy.set_types(_TYPES)
                    for row in rows:
                        copy.write_row(row)
                [(still_there,)] = connection.execute(self._sql(_COUNT), [[*unchanged]]).fetchall()
                if still_there < len(unchanged):
                    raise BlockingIOError(f"Another process has changed {self.location} meanwhile; try again.")
                connection.execute(self._sql(_OUTDATED), [[*sources], [*unchanged]])
                connection.execute(self._sql(_UPSERT))

        self._run(write)

    def close(self) -> None:
        """Close the connection; a later call opens a new connection."""
        with self._lock:
            if self._open is not None:
                self._open.close()

    def _facts(self, connection: Connection[Any]) -> Mapping[str, Any] | None:
        """Return the facts about the vectors, which are stored in the table's comment; None if there is no table."""
        from psycopg.sql import Identifier

        name = Identifier(self._address.table).as_string(connection)
        [(exists, comment)] = connection.execute(_FACTS, {"name": name}).fetchall()
        if not exists:
            return None
        try:
            facts = json.loads(comment or "")
            if facts["antiphon"] == _FORMAT:
                return dict(facts)
        except (ValueError, TypeError, KeyError):
            pass
        raise IndexMismatch(
            f"The table in {self.location} is no index of this version of Antiphon; give another (?table=NAME)."
        )

    def _create(self, connection: Connection[Any], embedder: Embedder, dry_run: bool) -> Mapping[str, Any]:
        from psycopg import errors
        from psycopg.sql import Literal

        own = {"embedder": embedder.name, "fingerprint": embedder.fingerprint, "dim": embedder.dim}
        facts: dict[str, Any] = {"antiphon": _FORMAT, **own}
        schema = self._sql(_SCHEMA, dim=Literal(embedder.dim), facts=Literal(json.dumps(facts)))
        connection.execute(_LOCK, [self.location])  # two processes may create the table at once
        try:
            existing = self._facts(connection)
            if existing is not None:
                return existing
            with connection.transaction(force_rollback=dry_run):
                connection.execute(schema)
        except (errors.FeatureNotSupported, errors.UndefinedFile, errors.InsufficientPrivilege) as error:
            raise DatabaseError(
                f"The table in {self.location} cannot be created: {_reason(error)}. It needs a server with the "
                "extension pgvector 0.8 or newer, and a user that may create tables in the database; a superuser "
                "creates the extension there with: create extension vector"
            ) from error
        finally:
            connection.execute(_UNLOCK, [self.location])
        return facts

    def _found(self, select: str, k: int, where: MetadataFilter | None, **values: Any) -> list[Passage]:
        from psycopg.sql import SQL

        condition = parse_filter(where)
        allowed = "true" if condition is None else sql_condition(condition, values)
        values["k"] = check_k(k, k)
        rows = self._rows(select, values, allowed=SQL(allowed))
        return [replace(_passage(*fields), score=float(score)) for *fields, score in rows]

    def _rows(self, text: str, values: Any = None, **parts: Any) -> list[tuple[Any, ...]]:
        return self._run(lambda connection: connection.execute(self._sql(text, **parts), values).fetchall())

    def _sql(self, text: str, **parts: Any) -> Composed:
        from psycopg.sql import SQL, Identifier

        return SQL(text).format(table=Identifier(self._address.table), **parts)

    def _run(self, work: Callable[[Connection[Any]], Result]) -> Result:
        """Run one query or transaction at a time.

        If the connection is broken, the query or transaction is repeated on a new connection.
        """
        import psycopg

        with self._lock, self._translated_errors():
            if self._open is not None and not self._open.closed:
                try:
                    return work(self._open)
                except psycopg.Error:
                    if not self._open.closed:
                        raise
            self._open = self._connect()
            return work(self._open)

    def _connect(self) -> Connection[Any]:
        import psycopg

        try:
            connection = psycopg.connect(
                self._address.url,
                autocommit=True,
                connect_timeout=max(2, round(self._timeout / 3)),
                tcp_user_timeout=round(1000 * self._timeout),
            )
        except psycopg.ProgrammingError:  # libpq's message may repeat a part of the password
            raise malformed() from None
        weakref.finalize(self, connection.close)
        # Set by a statement, because a connection option would replace the caller's options.
        connection.execute(_SESSION, [str(round(1000 * self._timeout))])
        return connection

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert psycopg's errors into errors of this package, which name the server without the password."""
        import psycopg

        try:
            yield
        except psycopg.errors.UndefinedTable as error:
            raise self._not_found() from error
        except psycopg.Error as error:
            reason, state = _reason(error), error.sqlstate
            is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and state is None
            if not is_lost and not (state or "").startswith(("08", "57P")):
                raise DatabaseError(f"{self.location}: {reason}") from error
            before, refused, after = reason.partition("FATAL:")
            if "password" in reason:
                raise DatabaseUnavailable(
                    f"{self.location} refuses the login: {(after or before).strip()}. Give the password in the "
                    "address, in PGPASSWORD or in ~/.pgpass."
                ) from error
            if refused:
                raise DatabaseUnavailable(f"{self.location} refuses the connection: {after.strip()}.") from error
            raise DatabaseUnavailable(
                f"{self.location} does not answer: {reason}. Is PostgreSQL running, and is this its address?"
            ) from error

    def _not_found(self) -> IndexNotFound:
        return IndexNotFound(
            f"{self.location} holds no index, because the table does not exist; make one: antiphon index PATH... --out "
            "ADDRESS"
        )


def _passage(identifier: str, text: str, source: str, start: int, end: int, metadata: dict[str, Any]) -> Passage:
    return Passage(text, identifier, source, start, end, None, metadata)


def _record(passage: Passage, vector: list[float]) -> tuple[Any, ...]:
    from psycopg.types.json import Jsonb

    keywords, metadata = "\n".join(keyword_fields(passage)), Jsonb(json_metadata(passage))
    return passage.id, passage.text, passage.source, passage.start, passage.end, metadata, vector, keywords


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, without user names and passwords of addresses."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"://[^/?#\s]*@", "://", line).rstrip(".")
