"""Read PDF files with pypdf: text, title, page starts and numbered headings."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Iterator

from antiphon.retrieval.document import LONE_SURROGATE, Document
from antiphon.retrieval.formats.markup import numbered_headings

_BREAK = "\n\n"
_READING = threading.Lock()  # pypdf's logger is shared by all threads

logger = logging.getLogger("antiphon.retrieval")


def read_pdf_document(data: bytes, source: str) -> Document:
    """Read a PDF as a document.

    Args:
        data: The bytes of the file.
        source: The name of the document.

    Raises:
        ValueError: The file is encrypted with a password, or is damaged.
    """
    text, title, pages = read_pdf(data, source)
    return Document(text, source, {"title": title} if title else {}, numbered_headings(text), pages)


def read_pdf(data: bytes, source: str) -> tuple[str, str, tuple[int, ...]]:
    """Return the text of a PDF, its title (may be empty) and the first character of each page.

    Messages of pypdf about the file are logged as one warning with the file's name.

    Args:
        data: The bytes of the file.
        source: The name of the file, for the warning.

    Raises:
        ValueError: The file is encrypted with a password, or is damaged.
    """
    with _messages_with_source(source):
        return _read(data)


def _read(data: bytes) -> tuple[str, str, tuple[int, ...]]:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, PyPdfError

    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ValueError("it is encrypted with a password")
        pages = [_clean(page.extract_text()) for page in reader.pages]
        title = _clean(str((reader.metadata and reader.metadata.title) or ""))
    except DependencyError as error:
        raise ValueError("it is encrypted in a way that needs `pip install 'pypdf[crypto]'`") from error
    # A damaged file can raise many kinds of errors; pypdf wraps only some of them.
    except (PyPdfError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, OSError) as error:
        raise ValueError(f"it is not a readable PDF ({type(error).__name__}: {error})") from error
    starts, position = [], 0
    for page in pages:
        starts.append(position)
        position += len(page) + len(_BREAK)
    return _BREAK.join(pages), title, tuple(starts)


def _clean(text: str) -> str:
    return LONE_SURROGATE.sub("\ufffd", text).strip()


class _MessageCollector(logging.Handler):
    """Keeps the messages that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.messages.append(record.getMessage())


@contextlib.contextmanager
def _messages_with_source(source: str) -> Iterator[None]:
    """Collect pypdf's messages, which name no file, and log them as one message that names it.

    Names and messages can contain any character of the file, so they are logged with ``repr``.
    """
    pypdf = logging.getLogger("pypdf")
    collector = _MessageCollector()
    with _READING:
        propagates, pypdf.propagate = pypdf.propagate, False
        pypdf.addHandler(collector)
        try:
            yield
        finally:
            pypdf.removeHandler(collector)
            pypdf.propagate = propagates
    if collector.messages:
        more = f" (and {len(collector.messages) - 1} more)" if len(collector.messages) > 1 else ""
        logger.warning("%r: pypdf says %r%s", source, collector.messages[0], more)
