"""Record the file that a document was read from, and detect whether the file has changed since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

from antiphon.accel.files import sha256

SOURCE_FILE = "source_file"
"""The metadata key of the fields of a passage's `SourceFile`."""

FileChange = Literal["", "changed", "deleted"]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that was indexed. Documents are the same if their files have the same path.

    Attributes:
        path: The absolute path, without symbolic links.
        size: The size in bytes.
        modified: The time of the last change, in nanoseconds.
        sha256: The checksum of the content.
        root: The path that the user gave: the file itself, or a folder that contains it.
        base: The working directory when the file was indexed.
    """

    path: str
    size: int
    modified: int
    sha256: str
    root: str
    base: str

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> SourceFile | None:
        """Return the file in a passage's metadata; None if there is no file, as for uploaded documents."""
        try:
            return cls(**metadata[SOURCE_FILE])
        except (KeyError, TypeError):
            return None

    def as_metadata(self) -> dict[str, Any]:
        """Return the metadata of the passages of this file."""
        return {SOURCE_FILE: asdict(self)}

    def is_current(self) -> bool:
        """Return whether the file still has the same size and time, or the same content; False if it cannot be read."""
        try:
            now = Path(self.path).stat()
            same = (now.st_size, now.st_mtime_ns) == (self.size, self.modified)
            return same or (now.st_size == self.size and _sha256(self.path, now.st_mtime_ns) == self.sha256)
        except OSError:
            return False

    def change(self) -> FileChange:
        """Return whether the file has been changed or deleted; empty if neither.

        A server may have only the index: if neither the file's folder nor the folder above exists,
        the file counts as unchanged.
        """
        path = Path(self.path)
        if path.exists():
            return "" if self.is_current() else "changed"
        above = [folder for folder in (path.parent, path.parent.parent) if folder != folder.parent]
        return "deleted" if any(folder.is_dir() for folder in above) else ""


def file_change(metadata: Mapping[str, Any]) -> FileChange:
    """Return whether the file in a passage's metadata was changed or deleted; empty if neither."""
    file = SourceFile.of(metadata)
    return "" if file is None else file.change()


def normalized_name(name: str) -> str:
    """Return a name with composed letters (NFC), because some file systems and keyboards decompose ``é``."""
    return normalize("NFC", name)


@lru_cache(256)
def _sha256(path: str, modified: int) -> str:
    """Return the checksum of a file. With a new ``modified``, the checksum is computed again."""
    return sha256(Path(path))
