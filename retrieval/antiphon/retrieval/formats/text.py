"""Decode the bytes of a text file."""

from __future__ import annotations


def decode(data: bytes, encoding: str | None = None) -> str:
    """Decode bytes: in the given encoding, else as UTF-16 if there is its byte order mark, else as UTF-8.

    Args:
        data: The content of a file.
        encoding: The name of an encoding. None: detect UTF-16, else assume UTF-8.

    Raises:
        ValueError: The bytes are binary, not valid in the encoding, or the encoding is unknown.
    """
    if encoding is None:
        encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        kind = "it is binary" if b"\0" in data[:4096] else f"it is not {encoding.upper()} text"
        raise ValueError(f"{kind} (byte {error.start})") from error
    except LookupError as error:
        raise ValueError(f"it is in {encoding}, an encoding that is not known") from error
    if "\0" in text:
        raise ValueError(f"it is binary (a zero character at {text.index(chr(0))})")
    return text
