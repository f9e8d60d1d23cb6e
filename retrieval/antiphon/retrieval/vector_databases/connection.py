"""Helpers for all vector databases: addresses without secrets, errors of unreachable servers, batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from antiphon.retrieval.collection import Collection
from antiphon.retrieval.errors import DatabaseUnavailable
from antiphon.retrieval.filters import json_metadata
from antiphon.retrieval.passage import Passage

TIMEOUT = 30.0
"""Default timeout for an answer, in seconds; connecting may take a third of it."""

FIELDS = ("id", "text", "source", "start", "end", "metadata")
"""The fields of a passage that a server stores."""

Item = TypeVar("Item")


def passage_fields(passage: Passage) -> dict[str, Any]:
    """Return the fields of a passage that a server stores, by the names in `FIELDS`."""
    return {name: getattr(passage, name) for name in FIELDS} | {"metadata": json_metadata(passage)}


def batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield the items in batches of at most ``size``."""
    return (items[first : first + size] for first in range(0, len(items), size))


@contextmanager
def close_on_error(collection: Collection) -> Iterator[None]:
    """Close a collection if its construction fails."""
    try:
        yield
    except BaseException:
        collection.close()
        raise


@contextmanager
def name_unreachable_server(
    server: str, failures: tuple[type[Exception], ...], is_gone: Callable[[Exception], bool] = lambda error: True
) -> Iterator[None]:
    """Convert a client's connection errors and timeouts into one error that names the server.

    Names and passwords in addresses are removed from the message.

    Args:
        server: The server, as the message should name it.
        failures: The classes that the client raises.
        is_gone: Returns whether such an error means that the server cannot be reached.

    Raises:
        DatabaseUnavailable: The server cannot be reached.
    """
    try:
        yield
    except failures as error:
        if not is_gone(error):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        message = f"{server} does not answer: {reason}. Is it running, and is this its address?"
        raise DatabaseUnavailable(remove_credentials(message)) from error


def shown_address(server: str, address: str, schemes: Sequence[str]) -> str:
    """Return scheme, host and port of an address, without the password before them and the token behind them.

    Args:
        server: The name of the database, for the message.
        address: The address that the user gave.
        schemes: The schemes that the client accepts.

    Raises:
        ValueError: The address is malformed. The message does not repeat it, because it may contain a password.
    """
    try:
        parts = urlsplit(address)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        raise _malformed(server, schemes) from None
    behind = parts.path + parts.query + parts.fragment
    if parts.scheme not in schemes or not (parts.hostname or parts.scheme == "unix") or "@" in behind:
        raise _malformed(server, schemes)
    host = parts.hostname or parts.path
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def looks_like_address(text: str) -> bool:
    """Return whether a text is meant as an address, even a malformed one, and not as a path."""
    return "://" in text or re.match(r"[^/\\]*:[^/\\]*@", text) is not None


def remove_credentials(text: str) -> str:
    """Return the text without the user name and the password of any address in it."""
    return re.sub(r"://[^/?#\s]*@", "://", text)


def _malformed(server: str, schemes: Sequence[str]) -> ValueError:
    return ValueError(
        f"The address of {server} cannot be read; it has the form {schemes[0]}://HOST:PORT or "
        f"{schemes[0]}://USER:PASSWORD@HOST:PORT, with / ? # @ and % in a password written as %2F %3F %23 %40 and %25 "
        "(it is not repeated here, since it may hold a password)."
    )
