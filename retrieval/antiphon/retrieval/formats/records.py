"""Read JSON and JSON Lines: objects as lines of ``name: value``, one block per record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from antiphon.retrieval.document import Document
from antiphon.retrieval.formats.document_builder import DocumentBuilder
from antiphon.retrieval.formats.text import decode_text

_MAX_BLOCK = 800  # characters of a value that is shown as one block


def read_json_document(data: bytes, source: str) -> Document:
    """Read a JSON file; the place of a passage is the path of its record, such as ``items[3]``.

    Raises:
        ValueError: The file is damaged, or nested too deeply.
    """
    builder, decoded = DocumentBuilder(), decode_text(data)
    try:
        _add(parse_json(decoded.text), "", builder)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return builder.build(source, warnings=decoded.warnings)


def read_jsonl_document(data: bytes, source: str) -> Document:
    """Read a file with one JSON value per line; the place of a passage is the number of the line.

    Lines that are damaged, or nested too deeply, are reported.

    Raises:
        ValueError: The bytes are binary.
    """
    builder, decoded = DocumentBuilder(), decode_text(data)
    warnings = [*decoded.warnings]
    for number, line in enumerate(decoded.text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            builder.add("\n".join(_lines(parse_json(line))), {"lines": str(number)})
        except (ValueError, RecursionError) as error:
            reason = error if isinstance(error, ValueError) else "it is nested too deeply"
            warnings.append(f"line {number} was not read: {reason}")
    return builder.build(source, warnings=warnings)


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: The text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _add(value: Any, path: str, builder: DocumentBuilder) -> None:
    """Add a value as one block if it is short; otherwise add each of the values that it contains separately."""
    if isinstance(value, dict | list) and value and not _is_short(value):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, inner in items:
            inside = f"{path}[{name}]" if isinstance(value, list) else f"{path}.{name}".lstrip(".")
            is_field = isinstance(value, dict) and not isinstance(inner, dict | list)
            _add({name: inner} if is_field else inner, path if is_field else inside, builder)
        return
    builder.add("\n".join(_lines(value)), {"record": path} if path else None)


def _is_short(value: Any) -> bool:
    """Return whether a value is one record: short, and not a list of objects."""
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        return False
    if isinstance(value, dict) and len(value) == 1 and not isinstance(next(iter(value.values())), dict | list):
        return True
    return len(json.dumps(value, ensure_ascii=False)) <= _MAX_BLOCK


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of a value: ``name: value`` for objects, ``- value`` for lists."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _entry(f"{indent}{name}:", inner, indent)
    elif isinstance(value, list):
        for inner in value:
            yield from _entry(f"{indent}-", inner, indent)
    else:
        yield indent + _scalar(value)


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, list) and value and not any(isinstance(each, dict | list) for each in value):
        yield f"{head} {', '.join(_scalar(each) for each in value)}"
    elif isinstance(value, dict | list):
        yield head
        yield from _lines(value, indent + "  ")
    else:
        yield f"{head} {_scalar(value)}".rstrip()


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
