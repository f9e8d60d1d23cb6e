"""Finds the index of a command: the value of `--index`, or the nearest folder ``.antiphon`` in or above this folder."""

from __future__ import annotations

from pathlib import Path

from antiphon.retrieval.postgres.address import is_postgres

DEFAULT_INDEX = Path(".antiphon")
"""The folder that `antiphon index` writes without `--out`; it is hidden, so it is not indexed itself."""


def nearest_index() -> Path | None:
    """Return the nearest folder ``.antiphon`` with an index, in the working directory or above it, or None."""
    from antiphon.retrieval.index_folder.generations import index_version

    here = Path.cwd()
    for folder in (DEFAULT_INDEX, *(above / DEFAULT_INDEX for above in here.parents)):
        if index_version(folder)[0]:
            return folder
    return None


def find_index(given: str | Path | None) -> str | Path:
    """Return the index to answer from: a folder, or the address of a table. Nothing is loaded.

    Args:
        given: The value of `--index`; None: the nearest default index.

    Raises:
        IndexNotFound: The given folder has no index, or there is no default index.
        ValueError: The given address is malformed.
    """
    from antiphon.retrieval.errors import IndexNotFound
    from antiphon.retrieval.index_folder.generations import index_version

    if given is None:
        found = nearest_index()
        if found is None:
            raise IndexNotFound(
                f"There is no index in {DEFAULT_INDEX} here or in a folder above; make one with antiphon index PATH, "
                "or give the folder of one with --index."
            )
        return found
    if is_postgres(given):
        return given
    if not index_version(Path(given))[0]:
        raise IndexNotFound(f"{given} holds no index; make one: antiphon index PATH... --out {given}")
    return Path(given)
