"""The file of collections and keys: rights, revocation while the server runs, limits, and `antiphon keys`."""

import json
import logging
import time
from collections.abc import Iterable
from hmac import compare_digest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from antiphon.pipelines.cli import app as cli
from antiphon.pipelines.server import access_control
from antiphon.pipelines.server.access_control import Access, AccessKeys, RateLimit
from antiphon.pipelines.server.errors import ApiError
from antiphon.pipelines.server.key_file import add_key, key_digest, read_key_file, remove_key
from antiphon.pipelines.server.settings import ServerSettings

COLLECTIONS = """# Which team has which documents.
[collections.law]
index = "law-index"  # of the lawyers

[collections.team]
index = "/srv/team"
max_upload_bytes = 1000
"""

NAMES = st.sampled_from(["law", "team", "other"])
RIGHTS = st.frozensets(st.sampled_from(["law", "team", "*"]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "collections.toml"
    path.write_text(COLLECTIONS)
    return path


def bearer(key: str) -> str:
    return f"Bearer {key}"


def is_accepted(keys: AccessKeys, key: str | None) -> bool:
    try:
        keys.access(None if key is None else bearer(key))
    except ApiError as error:
        return error.status != 401
    return True


@given(RIGHTS, RIGHTS, NAMES)
def test_a_key_reads_what_it_is_given_and_what_it_may_change(read: Any, write: Any, name: str) -> None:
    access = Access("digest", "key", read, write)
    assert access.may_write(name) == (name in write or "*" in write)
    assert access.may_read(name) == (name in read or "*" in read or access.may_write(name))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), RIGHTS, RIGHTS), max_size=8))
def test_after_any_changes_exactly_the_keys_that_were_not_revoked_have_their_rights(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, Iterable[str], Iterable[str]]]
) -> None:
    path = tmp_path_factory.mktemp("keys") / "collections.toml"
    path.write_text(COLLECTIONS + "[keys]\n")
    server = AccessKeys(file=path)
    valid: dict[str, tuple[str, Any, Any]] = {}
    revoked: list[str] = []
    for name, read, write in changes:
        if name in valid:
            remove_key(path, name)
            revoked.append(valid.pop(name)[0])
        else:
            key = add_key(path, name, read=sorted(read), write=sorted(write))
            valid[name] = key, read, write
        for known, (key, own_read, own_write) in valid.items():
            access = server.access(bearer(key))
            assert (access.name, access.read, access.write) == (known, own_read, own_write)
        assert not any(is_accepted(server, key) for key in revoked)
        assert not is_accepted(server, None)


def test_the_file_has_digests_and_keeps_its_comments_and_permissions(path: Path) -> None:
    path.chmod(0o640)
    key = add_key(path, "ana", read=["law"], write=[], requests_per_minute=9)
    text = path.read_text()
    assert text.startswith(COLLECTIONS)
    assert key not in text
    assert key.removeprefix("antiphon-") not in text
    assert read_key_file(path).keys["ana"].sha256 == key_digest(key)  # type: ignore[index]
    assert path.stat().st_mode & 0o777 == 0o640
    remove_key(path, "ana")
    assert path.read_text().startswith(COLLECTIONS)


def test_keys_between_collections_are_revoked_and_the_rest_stays(path: Path) -> None:
    tables = "".join(f'[keys.{name}]\nsha256 = "{key_digest(name)}"\n' for name in "ab")
    path.write_text(f"{tables}\n{COLLECTIONS}\n[keys.c]\nsha256 = '{key_digest('c')}' # the last\n")
    remove_key(path, "b")
    assert list(read_key_file(path).keys or ()) == ["a", "c"]
    assert COLLECTIONS.partition("\n")[2] in path.read_text()
    assert "# the last" in path.read_text()
    for name in "ac":
        remove_key(path, name)
    assert read_key_file(path).keys == {}


def test_after_the_last_key_is_revoked_a_key_is_still_needed(path: Path) -> None:
    key = add_key(path, "ana", read=["law"], write=[])
    running = AccessKeys(file=path)
    remove_key(path, "ana")
    for server in (running, AccessKeys(file=path)):
        assert not is_accepted(server, key)
        assert not is_accepted(server, None)


def test_a_file_without_a_table_of_keys_needs_none_until_it_has_one(path: Path) -> None:
    server = AccessKeys(file=path)
    assert server.access(None) == Access()
    add_key(path, "ana", read=["law"], write=[])
    assert not is_accepted(server, None)
    path.write_text(COLLECTIONS)
    assert not is_accepted(server, None), "a table that disappears opens nothing"


def test_a_file_that_cannot_be_read_again_leaves_the_keys_and_logs_none(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = add_key(path, "ana", read=["law"], write=[])
    server = AccessKeys(file=path)
    valid = path.read_text()
    path.write_text(f'{valid}\n[keys.bob]\nsha256 = "{key}"\n')  # a key in the place of its digest
    with caplog.at_level(logging.DEBUG):
        assert is_accepted(server, key)
        assert is_accepted(server, key)
    assert [record.getMessage() for record in caplog.records] == [
        "the file of API keys cannot be read again; the keys from before stay valid"
    ]
    assert "keys.bob.sha256" in caplog.text
    assert key not in caplog.text
    path.unlink()
    assert is_accepted(server, key)
    path.write_text(valid.replace("[keys.ana]", "[keys.eve]"))
    assert server.access(bearer(key)).name == "eve"


def test_a_file_that_could_not_be_opened_is_read_at_the_next_request(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = add_key(path, "ana", read=["law"], write=[])
    server = AccessKeys(file=path)

    def too_many_files(_: Path) -> Any:
        raise OSError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(access_control, "read_key_file", too_many_files)
        remove_key(path, "ana")
        assert [is_accepted(server, key) for _ in range(2)] == [True, True]
    assert len(caplog.records) == 1
    assert not is_accepted(server, key), "the key is revoked"


@pytest.mark.parametrize("key", ["", " ", "key\n", "\xa0key"])
def test_a_key_that_no_client_can_send_is_refused_at_the_start(key: str) -> None:
    with pytest.raises(ValueError, match="An API key is empty or has white space around it"):
        ServerSettings(api_keys=("good", key))


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "bearer   ", ""])
def test_the_digest_of_nothing_lets_no_request_in(path: Path, header: str) -> None:
    path.write_text(f'{COLLECTIONS}[keys.empty]\nsha256 = "{key_digest("")}"\nread = ["*"]\n')
    with pytest.raises(ApiError) as refused:
        AccessKeys(file=path).access(header)
    assert refused.value.status == 401


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[collections", "is not valid TOML"),
        ("", "collections: Field required"),
        ("[collections.a]", "collections.a.index: Field required"),
        ('[collections.a]\nindex = "x"\nquota = 1', "collections.a.quota: Extra inputs are not permitted"),
        ('[collections.a]\nindex = "x"\n[keys.b]\nsha256 = "SECRET"', "keys.b.sha256"),
        (
            '[collections.a]\nindex = "x"\n[keys.b]\nsha256 = "' + "0" * 64 + '"\nread = ["c"]',
            "the key 'b' names the collection 'c'; there are a and *",
        ),
        (
            '[collections.a]\nindex = "x"\n' + "".join(f'[keys.{n}]\nsha256 = "{"0" * 64}"\n' for n in "bc"),
            "the keys 'b' and 'c' have the same digest",
        ),
    ],
)
def test_an_invalid_file_is_refused_with_the_place_and_without_the_value(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ValueError, match=r"c\.toml") as refused:
        read_key_file(tmp_path / "c.toml")
    assert message in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_every_accepted_key_is_compared_in_constant_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [add_key(path, name, read=["law"], write=[]) for name in "abc"]
    server = AccessKeys(("admin",), path)
    compared: list[str] = []

    def compare(sent: str, accepted: str) -> bool:
        compared.append(accepted)
        return compare_digest(sent, accepted)

    monkeypatch.setattr(access_control, "compare_digest", compare)
    for sent in (keys[0], keys[2], "admin", "wrong"):
        compared.clear()
        is_accepted(server, sent)
        assert compared == [key_digest("admin"), *map(key_digest, keys)]


def test_a_key_and_its_digest_are_not_in_the_text_of_its_rights(path: Path) -> None:
    key = add_key(path, "ana", read=["law"], write=[])
    access = AccessKeys(file=path).access(bearer(key))
    assert key not in repr(access)
    assert key_digest(key) not in repr(access)


def test_a_key_may_send_its_requests_in_any_minute_and_is_told_when_it_may_send_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    limit = RateLimit(3)
    own, default = Access("a", requests_per_minute=2), Access("b")
    for second in (1000.0, 1020.0):
        now = second
        limit.count(own)
    now = 1030.0
    with pytest.raises(ApiError, match="2 requests a minute; try again in 30 s") as refused:
        limit.count(own)
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "30"})
    for _ in range(3):
        limit.count(default)
    with pytest.raises(ApiError):
        limit.count(default)
    now = 1060.5
    limit.count(own)
    with pytest.raises(ApiError, match="in 20 s"):
        limit.count(own)


def test_keys_are_made_listed_and_revoked_on_the_command_line(path: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(cli, ["keys", *arguments, "--file", str(path)])

    made = run("create", "ana", "--read", "law", "--write", "team", "--requests-per-minute", "60")
    [key] = made.stdout.split()
    assert AccessKeys(file=path).access(bearer(key)) == Access(
        key_digest(key), "ana", frozenset({"law"}), frozenset({"team"}), 60
    )
    listed = run("list", "--json")
    expected = {"name": "ana", "read": ["law"], "write": ["team"], "requests_per_minute": 60}
    assert json.loads(listed.stdout) == expected
    assert key_digest(key) not in run("list").output
    assert "There is a key 'ana' already" in run("create", "ana", "--read", "law").output
    assert run("create", "bob").exit_code == 2
    assert run("revoke", "ana").exit_code == 0
    assert "There is no key 'ana'; there are none." in run("revoke", "ana").output
    assert "There are no keys" in run("list").output
