"""Where commands find the index: at `--index`, or in the folder ``.antiphon`` here or in a folder above."""

from __future__ import annotations

from pathlib import Path

from antiphon.retrieval.postgres.address import is_postgres

DEFAULT_INDEX = Path(".antiphon")
"""The folder that `antiphon index` writes without `--out`; it is hidden, so it is not indexed itself."""


def nearest_index() -> Path | None:
    """Return the nearest folder ``.antiphon`` with an index, here or in a folder above; None if there is none."""
    from antiphon.retrieval.index_folder.generations import index_version

    here = Path.cwd()
    for folder in (DEFAULT_INDEX, *(above / DEFAULT_INDEX for above in here.parents)):
        if index_version(folder)[0]:
            return folder
    return None


def find_index(given: str | Path | None) -> str | Path:
    """Return the index to answer from, before anything is loaded: a folder, or the address of a table.

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
