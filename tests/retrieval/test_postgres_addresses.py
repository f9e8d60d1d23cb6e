"""Addresses of tables: what is read from them, and that no message repeats a password, however mistyped they are."""

import traceback
from pathlib import Path

import pytest

from antiphon.retrieval import DatabaseUnavailable, HashEmbedder, PostgresIndex, Retriever, build_index
from antiphon.retrieval.postgres.address import PostgresAddress, is_postgres

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


@pytest.mark.parametrize("name", ["", "x" * 64])
def test_the_name_of_a_table_has_1_to_63_bytes(name: str) -> None:
    with pytest.raises(ValueError, match="The name of a table has 1 to 63 bytes"):
        PostgresAddress.parse(f"postgresql://h/db?table={name}")
