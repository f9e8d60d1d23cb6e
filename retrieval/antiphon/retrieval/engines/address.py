"""A server's address, checked before a client sees it, and what of it may be shown. Knows no server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit


def shown_address(server: str, address: str, schemes: Sequence[str]) -> str:
    """The address as scheme, host and port alone: a password can stand before them, a token behind them.

    Raises:
        ValueError: it is no address of these schemes. The message repeats none of it: clients' own messages do.
    """
    try:
        parts = urlsplit(address)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        raise _unreadable(server, schemes) from None
    behind = parts.path + parts.query + parts.fragment
    if parts.scheme not in schemes or not (parts.hostname or parts.scheme == "unix") or "@" in behind:
        raise _unreadable(server, schemes)
    host = parts.hostname or parts.path
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def is_address(text: str) -> bool:
    """Whether a text is meant as an address, even a mistaken one, and not as a path."""
    return "://" in text or re.match(r"[^/\\]*:[^/\\]*@", text) is not None


def _unreadable(server: str, schemes: Sequence[str]) -> ValueError:
    return ValueError(
        f"The address of {server} cannot be read; it has the form {schemes[0]}://HOST:PORT or "
        f"{schemes[0]}://USER:PASSWORD@HOST:PORT, with / ? # @ and % in a password written as %2F %3F %23 %40 and %25 "
        "(it is not repeated here, since it may hold a password)."
    )
