"""The index in PostgreSQL: indexing again, several writers, errors of the server, and rights of clients."""

import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from antiphon.retrieval import (
    DatabaseError,
    DatabaseUnavailable,
    HashEmbedder,
    IndexMismatch,
    IndexNotFound,
    Passage,
    PostgresIndex,
    Retriever,
    WouldDropDocuments,
    build_index,
    remove_documents,
)
from antiphon.retrieval.postgres.address import PostgresAddress, is_postgres
from antiphon.retrieval.vector_index.flat import Vectors
from tests.load.servers import free_port
from tests.retrieval.servers import postgres, silence, table_address

EMBEDDER = HashEmbedder(16)
PASSAGES = [Passage.at(f"file{number % 7}.txt", 10 * number, f"Owl number {number} sleeps.") for number in range(40)]
VECTORS = EMBEDDER.embed_documents([passage.text for passage in PASSAGES])
QUERY = EMBEDDER.embed_queries(["owl number 7"])[0]


class Counting(HashEmbedder):
    """Records the texts that it embeds; stops at a given text."""

    def __init__(self, stop_at: str = "") -> None:
        super().__init__(16)
        self.texts: list[str] = []
        self.block = 1
        self.stop_at = stop_at

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        if self.stop_at and any(self.stop_at in text for text in texts):
            raise KeyboardInterrupt
        self.texts += texts
        return super().embed_documents(texts)


@pytest.fixture
def server(postgres_server: Any) -> Any:
    return postgres_server


@pytest.fixture
def url(server: Any, request: pytest.FixtureRequest) -> str:
    return table_address(server, f"t{abs(hash(request.node.name))}")


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in ("a/one.txt", "a/two.txt", "b/three.txt"):
        write(tmp_path / name, f"The text of {Path(name).stem}.")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def sources(url: str) -> list[str]:
    return list(PostgresIndex(url).sources())


@pytest.mark.slow
def test_documents_are_replaced_added_and_removed_and_only_new_texts_are_embedded(docs: Path, url: str) -> None:
    embedder = Counting()
    first = build_index(["a"], url, embedder=embedder)
    assert (first.files, first.passages, first.reused, first.location) == (2, 2, 0, PostgresIndex(url).location)
    write(docs / "a" / "two.txt", "Another text of two.")
    write(docs / "a" / "four.txt", "The text of four.")
    second = build_index(["a"], url, embedder=embedder)
    assert (second.passages, second.reused, second.kept, second.dropped) == (3, 1, 0, ())
    assert embedder.texts == ["The text of one.", "The text of two.", "Another text of two.", "The text of four."]
    added = build_index(["b"], url, embedder=embedder, add=True)
    assert (added.passages, added.kept, added.dropped) == (1, 3, ())
    assert sources(url) == ["a/four.txt", "a/one.txt", "a/two.txt", "b/three.txt"]
    (docs / "a" / "one.txt").unlink()
    again = build_index(["a"], url, embedder=embedder, add=True)
    assert (again.dropped, sources(url)) == (("a/one.txt",), ["a/four.txt", "a/two.txt", "b/three.txt"])
    with pytest.raises(WouldDropDocuments, match=rf"drop 1 of the 3 documents in {again.location[:13]}.*: b/three.txt"):
        build_index(["a"], url, embedder=embedder, confirm=lambda _: False)
    assert build_index(["a"], url, embedder=embedder, confirm=lambda _: True).dropped == ("b/three.txt",)
    assert remove_documents(url, ["a/two.txt"]) == ("a/two.txt",)
    assert sources(url) == ["a/four.txt"]
    with pytest.raises(ValueError, match=r"has no document 'b'; it has a/four.txt"):
        remove_documents(url, ["b"])
    assert len(embedder.texts) == 5


@pytest.mark.slow
def test_an_interrupted_run_goes_on_from_its_vectors(docs: Path, url: str) -> None:
    interrupted = Counting(stop_at="The text of two.")
    with pytest.raises(KeyboardInterrupt):
        build_index(["a", "b"], url, embedder=interrupted)
    with pytest.raises(IndexNotFound, match="holds no index"):
        PostgresIndex(url)
    embedder = Counting()
    report = build_index(["a", "b"], url, embedder=embedder)
    assert interrupted.texts
    assert report.reused == len(interrupted.texts)
    assert sorted(embedder.texts + interrupted.texts) == [f"The text of {name}." for name in ("one", "three", "two")]
    assert not list((docs / "cache").rglob("*.npz"))


@pytest.mark.slow
def test_a_table_keeps_its_embedder_and_refuses_another(docs: Path, url: str) -> None:
    build_index(["a"], url, embedder="hash")
    assert build_index(["a", "b"], url).embedder == "hash"
    with pytest.raises(IndexMismatch, match=r"made with the embedder hash .* is not hash .*\(\?table=NAME\)"):
        build_index(["a"], url, embedder=EMBEDDER)
    with pytest.raises(IndexMismatch, match=r"made with the embedder hash .* is not"):
        Retriever.open(url, embedder=EMBEDDER)
    with pytest.raises(ValueError, match="The setting is 'flat'; PostgreSQL searches a table by its own index"):
        build_index(["a"], url, setting="flat")
    assert sources(url) == ["a/one.txt", "a/two.txt", "b/three.txt"]


@pytest.mark.slow
def test_two_writers_at_once_lose_nothing(docs: Path, url: str) -> None:
    build_index(["a"], url, embedder="hash")
    for number in range(6):
        write(docs / f"new{number}" / "doc.txt", f"The text of document {number}.")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: build_index([f"new{number}"], url, add=True), range(6)))
    assert sources(url) == ["a/one.txt", "a/two.txt", *(f"new{number}/doc.txt" for number in range(6))]


@pytest.mark.slow
def test_a_change_is_refused_if_another_process_has_removed_what_it_keeps(url: str) -> None:
    index = PostgresIndex(url, EMBEDDER)
    index.upsert(PASSAGES[:5], VECTORS[:5])
    index.remove([PASSAGES[0].id])
    with pytest.raises(BlockingIOError, match=r"Another process has changed .* meanwhile; try again"):
        index.replace_documents(["file0.txt"], PASSAGES[7:8], VECTORS[7:8], unchanged=[PASSAGES[0].id])
    assert len(index) == 4


@pytest.mark.slow
def test_a_table_of_something_else_is_refused(server: Any) -> None:
    server.psql("create table foreign_table (id text); comment on table foreign_table is 'of the shop';")
    for embedder in (None, EMBEDDER):
        with pytest.raises(IndexMismatch, match=r"table=foreign_table is no index of this version of Antiphon"):
            PostgresIndex(table_address(server, "foreign_table"), embedder)


@pytest.mark.slow
def test_a_missing_table_is_named_also_if_it_is_dropped_while_it_is_used(server: Any, url: str) -> None:
    with pytest.raises(IndexNotFound, match=r"holds no index, because the table does not exist; make one: antiphon"):
        Retriever.open(url)
    index = PostgresIndex(url, EMBEDDER)
    server.psql(f"drop table {url.rpartition('=')[2]};")
    with pytest.raises(IndexNotFound, match="holds no index"):
        index.vector_search(QUERY, 3)


@pytest.mark.slow
def test_a_user_who_may_only_read_searches_and_cannot_change(server: Any, url: str) -> None:
    PostgresIndex(url, EMBEDDER).upsert(PASSAGES, VECTORS)
    server.psql(f"create role reader login; grant select on {url.rpartition('=')[2]} to reader;")
    index = PostgresIndex(url.replace("postgres:@", "reader:@"))
    assert len(index.vector_search(QUERY, 3)) == 3
    with pytest.raises(DatabaseError, match="permission denied for table"):
        index.remove([PASSAGES[0].id])
    with pytest.raises(DatabaseError, match="permission denied for schema public"):
        PostgresIndex(table_address(server, "another").replace("postgres:@", "reader:@"), EMBEDDER)


@pytest.mark.slow
def test_a_wrong_password_and_a_missing_database_are_named_and_no_password_is_repeated(server: Any) -> None:
    server.psql("create role locked login password 'right';")
    rules = Path(server.pgdata) / "pg_hba.conf"
    rules.write_text(f"local all locked scram-sha-256\n{rules.read_text()}")
    server.psql("select pg_reload_conf();")
    address = table_address(server, "passages")
    with pytest.raises(
        DatabaseUnavailable, match=r'refuses the login: .*failed for user "locked".*PGPASSWORD'
    ) as wrong:
        PostgresIndex(address.replace("postgres:@", "locked:s3cr3t@"), EMBEDDER)
    with pytest.raises(DatabaseUnavailable, match=r"refuses the login: .*no password supplied"):
        PostgresIndex(address.replace("postgres:@", "locked@"), EMBEDDER)
    with pytest.raises(
        DatabaseUnavailable, match=r'refuses the connection: database "nowhere" does not exist'
    ) as missing:
        PostgresIndex(address.replace("/postgres?", "/nowhere?").replace("postgres:@", "postgres:s3cr3t@"), EMBEDDER)
    assert "s3cr3t" not in f"{wrong.value} {missing.value}"


@pytest.mark.slow
def test_without_psycopg_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"pip install 'antiphon\[postgres\]'"):
        Retriever.open("postgresql://127.0.0.1:1/db")


@pytest.mark.slow
def test_a_missing_or_silent_server_is_a_clear_error_and_never_hangs() -> None:
    with silence() as mute:
        for port in (free_port(), mute):
            began = time.monotonic()
            with pytest.raises(DatabaseUnavailable, match=rf"//127\.0\.0\.1:{port}/db\?table=passages does not answer"):
                PostgresIndex(f"postgresql://me:secret@127.0.0.1:{port}/db", EMBEDDER, timeout=3)
            assert time.monotonic() - began < 60


@pytest.mark.slow
def test_a_stopped_server_is_a_clear_error_and_a_restarted_one_is_used_again() -> None:
    with postgres() as server:
        index = PostgresIndex(server.get_uri(), EMBEDDER)
        index.upsert(PASSAGES[:5], VECTORS[:5])
        server.stop()
        for call in (lambda: index.vector_search(QUERY, 3), lambda: index.upsert(PASSAGES[:1], VECTORS[:1])):
            with pytest.raises(DatabaseUnavailable, match=r"table=passages does not answer"):
                call()
        server.start()
        assert len(index.vector_search(QUERY, 9)) == 5
        server.stop()
        server.start()
        assert len(index.vector_search(QUERY, 9)) == 5, "the broken connection is opened again"


SECRET = "s3cr3t"
MISTYPED = [
    f"postgresql://user:{SECRET}/x@127.0.0.1:1/db",
    f"postgresql://user:{SECRET}#1@127.0.0.1:1/db",
    f"postgresql://user:1234#{SECRET}@127.0.0.1:1/db",
    f"postgresql://user:1234/{SECRET}@127.0.0.1:1/db",
    f"postgresql://user:1234?{SECRET}@127.0.0.1:1/db",
    f"postgresql://user:1234?a={SECRET}@127.0.0.1:1/db",
    f"postgresql://user:1234@{SECRET}@127.0.0.1:1/db",
    f"postgresql://user:%zz{SECRET}@127.0.0.1:1/db",
    f"postgresql://user:{SECRET}@127.0.0.1:port/db",
    f"postgresql://user:{SECRET}@127.0.0.1:1/db?table",
    f"postgresql:/user:{SECRET}@127.0.0.1",
    f"postgres//user:{SECRET}@127.0.0.1",
    f"mysql://user:{SECRET}@127.0.0.1",
    f"user:{SECRET}@127.0.0.1:1",
]
UNREACHABLE = [
    f"postgresql://user:{SECRET}@127.0.0.1:1/db",
    f"postgresql://127.0.0.1:1/db?password={SECRET}",
    f"postgres://user:{SECRET}@127.0.0.1:1/db?table=passages",
]


@pytest.mark.parametrize("address", MISTYPED)
def test_a_malformed_address_is_refused_without_repeating_it(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("One.")
    for use in (lambda: build_index(["one.txt"], address), lambda: Retriever.open(address)):
        with pytest.raises(ValueError, match=r"cannot be read; an index is a folder, or .*not repeated here") as told:
            use()
        assert "1234" not in str(told.value)
        assert SECRET not in "".join(traceback.format_exception(told.value))
    assert [path.name for path in tmp_path.iterdir()] == ["one.txt"], "it was taken for a folder"


@pytest.mark.parametrize("address", UNREACHABLE)
def test_an_unreachable_server_is_named_without_the_password(address: str) -> None:
    shown = r"postgresql://127\.0\.0\.1:1/db\?table=passages does not answer"
    with pytest.raises(DatabaseUnavailable, match=shown) as told:
        PostgresIndex(address, HashEmbedder(64), timeout=2)
    assert SECRET not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize(
    ("address", "table", "shown"),
    [
        ("postgresql://a:b@host:5433/db?table=docs", "docs", "postgresql://host:5433/db?table=docs"),
        ("postgres://a@host", "passages", "postgresql://host/?table=passages"),
        ("postgresql://a:%40%2F@[::1]:5432/db", "passages", "postgresql://[::1]:5432/db?table=passages"),
        ("postgresql://h1:1,h2:2/db?user=a&password=b", "passages", "postgresql://h1:1,h2:2/db?table=passages"),
        ("postgresql:///db?host=/run/pg&table=K%C3%A4se", "Käse", "postgresql:///db?host=/run/pg&table=K%C3%A4se"),
    ],
)
def test_an_address_is_shown_without_user_and_password(address: str, table: str, shown: str) -> None:
    assert is_postgres(address)
    parsed = PostgresAddress.parse(address)
    assert (parsed.table, parsed.shown) == (table, shown)
    assert "table" not in parsed.url
    assert ":b@" not in repr(parsed)


def test_settings_for_the_server_are_kept() -> None:
    address = "postgresql://a@h/db?options=-csearch_path%3Done%2Cpublic&table=t&sslmode=require"
    assert PostgresAddress.parse(address).url == (
        "postgresql://a@h/db?options=-csearch_path%3Done%2Cpublic&sslmode=require"
    )
