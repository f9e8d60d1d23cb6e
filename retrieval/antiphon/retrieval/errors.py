"""The errors of this package that callers may want to catch."""

from __future__ import annotations


class IndexNotFound(FileNotFoundError):  # noqa: N818
    """The folder contains no index, or the table does not exist in the database."""


class IndexCorrupt(ValueError):  # noqa: N818
    """A file of the index is missing, truncated or changed; the message names the file."""


class IndexMismatch(ValueError):  # noqa: N818
    """The index has another format or was made with another embedder than expected.

    The message names both formats or both embedders.
    """


class DatabaseUnavailable(ConnectionError):  # noqa: N818
    """A database server does not answer or refuses the connection; the message names the server."""


class DatabaseError(OSError):
    """A database server refuses a query or a change; the message names the server and the reason."""


class WouldDropDocuments(ValueError):  # noqa: N818
    """A change would drop documents of the index, and was not confirmed; the message says how many."""
