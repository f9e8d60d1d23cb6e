"""Limits for files from other people: unpacked size and nesting. Files beyond them are refused."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass

MAX_BYTES = 512 * 1024 * 1024
"""The largest unpacked content of one file, in bytes."""

MAX_RATIO = 200
"""The highest compression ratio of a large part of an archive; text seldom has more than 20."""

MAX_MEMBERS = 20_000
"""The maximum number of files in one archive or mailbox."""

MAX_DEPTH = 4
"""The maximum number of archives that are nested in each other."""

_LARGE = 16 * 1024 * 1024  # bytes; the compression ratio of smaller parts does not matter


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside another file: its path in that file, and either its bytes or why it cannot be unpacked."""

    name: str
    data: bytes
    reason: str = ""


def open_zip(data: bytes, kind: str) -> zipfile.ZipFile:
    """Open a ZIP archive after checking how large its content is.

    Args:
        kind: What the file should be, for the message, such as ``a Word document``.

    Raises:
        ValueError: The data are not a ZIP archive, are encrypted, or exceed the limits.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        if data.startswith(b"\xd0\xcf\x11\xe0") and "EncryptedPackage".encode("utf-16-le") in data:  # an Office file
            raise ValueError("it is encrypted with a password") from error
        raise ValueError(f"it is not {kind} ({error})") from error
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise ValueError(f"it contains {len(members):,} files; at most {MAX_MEMBERS:,} are read")
    if any(member.flag_bits & 1 for member in members):
        raise ValueError("it is encrypted with a password")
    check_size(sum(member.file_size for member in members))
    for member in members:
        if member.file_size > _LARGE and member.file_size > MAX_RATIO * max(1, member.compress_size):
            ratio = member.file_size // max(1, member.compress_size)
            raise ValueError(f"{member.filename!r} in it is compressed {ratio} times, as in a ZIP bomb")
    return archive


def check_size(size: int) -> None:
    """Refuse content of more than `MAX_BYTES`.

    Raises:
        ValueError: The content is larger.
    """
    if size > MAX_BYTES:
        raise ValueError(f"its content has {size / 2**20:,.0f} MB unpacked; at most {MAX_BYTES >> 20} MB are read")
