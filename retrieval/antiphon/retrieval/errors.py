"""The errors of this package that callers may want to catch."""

from __future__ import annotations


class IndexNotFound(FileNotFoundError):  # noqa: N818
    """The folder contains no index."""


class IndexCorrupt(ValueError):  # noqa: N818
    """A file of the index is missing, truncated or changed; the message names it."""


class IndexMismatch(ValueError):  # noqa: N818
    """The index has another format, or was made with another embedder; the message names both."""


class DatabaseUnavailable(ConnectionError):  # noqa: N818
    """A server does not answer, or not within the timeout; the message names it."""


class WouldDropDocuments(ValueError):  # noqa: N818
    """A change would drop documents of the index, and was not confirmed; the message says how many."""
