"""The TOML file of collections and API keys: the server reads it, and `antiphon keys` changes it.

It contains the SHA-256 digest of each key instead of the key. A key has 256 random bits, so it
cannot be guessed from its digest; passwords that people choose would need a salt and a slow hash.
"""

from __future__ import annotations

import os
import secrets
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Self

import tomlkit
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from antiphon.accel.files import write_file

EVERYTHING = "*"
"""The name that stands for every collection."""

KEY_PREFIX = "antiphon-"
"""The beginning of every key, by which programs that search texts for secrets recognize keys."""

Name = Annotated[str, StringConstraints(pattern=r"^[\w.:-]{1,64}$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True, frozen=True)


class CollectionEntry(_Entry):
    """A collection in the file.

    Attributes:
        index: the folder of the collection's index, or the address of a table of PostgreSQL. A
            relative path starts at the folder of the file.
        max_upload_bytes: maximum size of all uploaded files together.
        max_uploaded_documents: maximum number of uploaded documents, counting each file of an archive.
    """

    index: Annotated[str, Field(min_length=1)]
    read_only: bool = False
    max_upload_bytes: Annotated[int, Field(ge=0)] | None = None
    max_uploaded_documents: Annotated[int, Field(ge=0)] | None = None


class KeyEntry(_Entry):
    """An API key in the file.

    Attributes:
        write: the collections that the key may change and therefore also read.
        requests_per_minute: maximum requests in a minute; None: the server's setting.
    """

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    read: list[str] = []
    write: list[str] = []
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None


class KeyFile(_Entry):
    """The content of the file.

    Attributes:
        keys: the API keys by name; None: the file has no table of keys, and no key is needed.
    """

    collections: Annotated[dict[Name, CollectionEntry], Field(min_length=1)]
    keys: dict[Name, KeyEntry] | None = None

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        known = {EVERYTHING, *self.collections}
        names: dict[str, str] = {}
        for name, key in (self.keys or {}).items():
            if unknown := {*key.read, *key.write} - known:
                listed = ", ".join(self.collections)
                raise ValueError(f"the key {name!r} names the collection {min(unknown)!r}; there are {listed} and *")
            if names.setdefault(key.sha256, name) != name:
                raise ValueError(f"the keys {names[key.sha256]!r} and {name!r} have the same digest")
        return self


def key_digest(key: str) -> str:
    """Return the SHA-256 digest of a key as 64 hexadecimal digits."""
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_key_file(path: Path) -> KeyFile:
    """Read the file.

    Raises:
        ValueError: the file is not valid TOML, or a table or a value in it is missing, unknown or
            out of range. The message has the position but not the value, which may be a key.
        OSError: the file cannot be read.
    """
    return _parsed(path, path.read_bytes())


def _parsed(path: Path, content: bytes) -> KeyFile:
    try:
        return KeyFile.model_validate(tomllib.loads(content.decode("utf-8-sig")))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not valid TOML: it is not UTF-8") from None
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, found["loc"]))
        message = str(found["msg"]).removeprefix("Value error, ")
        raise ValueError(f"{path}: {f'{place}: ' if place else ''}{message}") from None


def add_key(
    path: Path, name: str, *, read: Sequence[str], write: Sequence[str], requests_per_minute: int | None = None
) -> str:
    """Make an API key, write its digest to the file, and return the key, which is not stored.

    Args:
        read: the collections that the key may read; "*" means all.
        write: the collections that the key may change and therefore also read; "*" means all.
        requests_per_minute: maximum requests in a minute; None: the server's setting.

    Raises:
        ValueError: the file has a key of this name already, or does not have one of the
            collections.
        OSError: the file cannot be read or written.
    """
    key = KEY_PREFIX + secrets.token_urlsafe(32)

    def add(keys: dict[str, Any]) -> None:
        if name in keys:
            raise ValueError(f"There is a key {name!r} already; revoke it first, or choose another name.")
        entry = tomlkit.table()
        entry["sha256"] = key_digest(key)
        entry["read"], entry["write"] = list(read), list(write)
        if requests_per_minute is not None:
            entry["requests_per_minute"] = requests_per_minute
        keys[name] = entry

    _change_keys(path, add)
    return key


def remove_key(path: Path, name: str) -> None:
    """Remove an API key from the file; a running server refuses it from the next request on.

    Comments between the key's table and the next table are removed too, because they may describe the key.

    Raises:
        ValueError: the file has no key of this name.
        OSError: the file cannot be read or written.
    """

    def remove(keys: dict[str, Any]) -> None:
        if name not in keys:
            raise ValueError(f"There is no key {name!r}; there are {', '.join(map(repr, keys)) or 'none'}.")
        del keys[name]

    _change_keys(path, remove)


def _change_keys(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the table of keys and write the file if it is still valid; its comments and its owner are kept."""
    path = path.resolve()  # a link to the file stays a link
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=10):
        document = tomlkit.parse(path.read_text(encoding="utf-8-sig"))
        keys = document.setdefault("keys", tomlkit.table(is_super_table=True))
        change(keys)
        if not keys:  # a table must remain, because without one the server needs no key
            del document["keys"]
            document["keys"] = tomlkit.table()
        content = tomlkit.dumps(document).encode()
        _parsed(path, content)
        before = path.stat()
        write_file(path, content, mode=before.st_mode & 0o777)
        with suppress(OSError, AttributeError):  # otherwise a server could not read what root has changed
            os.chown(path, before.st_uid, before.st_gid)
