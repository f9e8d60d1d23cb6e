"""Parse addresses of tables, ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE?table=NAME``; hide passwords."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

FORM = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE?table=NAME"
DEFAULT_TABLE = "passages"

_SCHEMES = ("postgresql", "postgres")
_MAX_NAME = 63  # bytes; PostgreSQL cuts off longer names
_SCHEME = re.compile(r"([A-Za-z][\w+.-]*)://")
_PASSWORD = re.compile(r":[^/\\]*@")
_HOST = r"(?:[\w.-]*|\[[\dA-Fa-f:.]+\]|%2[Ff][\w.%-]*)(?::\d+)?"
_ADDRESS = re.compile(rf"\w+://(?:[^/@#]*@)?(?P<hosts>{_HOST}(?:,{_HOST})*)(?:/(?P<database>[^/@#:]*))?")
_BAD_ESCAPE = re.compile(r"%(?![\dA-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """The address of a table.

    Attributes:
        url: The database's address for libpq; may contain a password.
        shown: The address for messages: without user and password.
    """

    url: str = field(repr=False)
    table: str
    shown: str

    @classmethod
    def parse(cls, address: str) -> PostgresAddress:
        """Parse an address. The default table is ``passages``.

        Raises:
            ValueError: The address is malformed. The message does not repeat the address, which may
                contain a password.
        """
        base, mark, query = address.partition("?")
        match = _ADDRESS.fullmatch(base)
        try:
            settings = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(mark)))
        except ValueError:
            raise malformed() from None
        if match is None or re.search("[@#]", query) or _BAD_ESCAPE.search(address):
            raise malformed()
        table = settings.pop("table", DEFAULT_TABLE)
        if not 0 < len(table.encode()) <= _MAX_NAME:
            raise ValueError(f"The name of a table has 1 to {_MAX_NAME} bytes; table= has {len(table.encode())}.")
        url = f"{base}?{urlencode(settings, quote_via=quote)}" if settings else base
        visible = {name: settings[name] for name in ("host", "port") if name in settings} | {"table": table}
        database = match["database"] or ""
        shown = f"postgresql://{match['hosts']}/{database}?{urlencode(visible, quote_via=quote, safe='/')}"
        return cls(url, table, shown)


def is_postgres(location: str | Path) -> bool:
    """Return whether an index is a table of PostgreSQL (True) or a folder (False).

    Raises:
        ValueError: The location is an address of another kind, or malformed. The message does not
            repeat the location.
    """
    text = str(location)
    match = _SCHEME.match(text)
    if match is not None and match[1].lower() in _SCHEMES:
        return True
    if match is not None or (_PASSWORD.search(text) and not Path(text).exists()):
        raise malformed()
    return False


def shown_location(location: str | Path) -> str:
    """Return the location of an index for messages: a folder, or the address of a table without password.

    Raises:
        ValueError: The address is malformed.
    """
    return PostgresAddress.parse(str(location)).shown if is_postgres(location) else str(location)


def malformed() -> ValueError:
    """Return the error for a malformed address; its message does not repeat the address."""
    return ValueError(
        f"The address of the index cannot be read; an index is a folder, or a table of PostgreSQL: {FORM}, with "
        "special characters percent-encoded, such as %40 for @ and %2F for / (the address is not repeated here, since "
        "it may hold a password)."
    )
