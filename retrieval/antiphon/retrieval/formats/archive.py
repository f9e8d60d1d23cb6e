"""Read ZIP archives: the files in them, without folders and hidden files."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from antiphon.retrieval.formats.limits import Member, open_zip
from antiphon.retrieval.formats.office import read_part


def zip_members(data: bytes) -> Iterator[Member]:
    """Yield the files of an archive in sorted order. A damaged file is yielded with a reason instead of its data.

    Raises:
        ValueError: The archive's directory is damaged, or the archive is encrypted or too large.
    """
    archive = open_zip(data, "a ZIP archive")
    for name in sorted(archive.namelist()):
        inside = posixpath.normpath(f"/{name}").lstrip("/")  # a name cannot lead out of the archive
        parts = inside.split("/")
        if not name.endswith("/") and not any(part.startswith(".") or part == "__MACOSX" for part in parts):
            try:
                yield Member(inside, read_part(archive, name))
            except ValueError as error:
                yield Member(inside, b"", str(error))
