"""Read source code: Python by classes and functions, other languages by blocks between empty lines."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence

from antiphon.retrieval.document import Document, Heading, Regions
from antiphon.retrieval.formats.text import decode_text

_LINE = re.compile(r"[^\n]*(?:\n|\Z)")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def read_python_document(data: bytes, source: str) -> Document:
    """Read a Python file; its classes and functions are headings, and the place of a passage is its lines.

    If this version of Python cannot parse the file, it is read without headings.

    Raises:
        ValueError: The bytes cannot be decoded.
    """
    decoded = decode_text(data)
    text = decoded.text
    starts = [match.start() for match in _LINE.finditer(text) if match[0] or match.start() == 0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings
            tree = ast.parse(text)
        headings = tuple(_headings(tree.body, "", 1, text, starts))
    except (SyntaxError, ValueError, RecursionError, MemoryError, IndexError):  # not this Python
        headings = ()
    lines = Regions.of_lines(text)
    return Document(text, source, {}, headings, regions=lines, cut_at_lines=True, warnings=decoded.warnings)


def read_code_document(data: bytes, source: str) -> Document:
    """Read source code of any language; the place of a passage is its lines.

    Raises:
        ValueError: The bytes cannot be decoded.
    """
    decoded = decode_text(data)
    lines = Regions.of_lines(decoded.text)
    return Document(decoded.text, source, regions=lines, cut_at_lines=True, warnings=decoded.warnings)


def _headings(body: Sequence[ast.stmt], inside: str, level: int, text: str, starts: Sequence[int]) -> Iterator[Heading]:
    """Yield a heading for each class and function, and a heading for the code after them.

    The heading for code has the name of the surrounding class as its title; the title is empty
    outside of classes.
    """
    follows = False
    for statement in body:
        if isinstance(statement, _Definition):
            first = min([statement.lineno, *(each.lineno for each in statement.decorator_list)])
            start, end = starts[first - 1], starts[statement.body[0].lineno - 1]
            end = end if end > start else start + 1
            yield Heading(start, end, level, statement.name)
            if isinstance(statement, ast.ClassDef):
                yield from _headings(statement.body, statement.name, level + 1, text, starts)
            follows = True
        elif follows:
            start = starts[statement.lineno - 1]
            yield Heading(start, start, max(1, level - 1), inside)
            follows = False
