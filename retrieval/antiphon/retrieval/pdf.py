"""Text and pages of a PDF file, through pypdf. Knows nothing of folders."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Iterator

from antiphon.retrieval.document import HALF_CHARACTER

_BREAK = "\n\n"
_READING = threading.Lock()  # where pypdf's messages go is one setting for all threads

logger = logging.getLogger("antiphon.retrieval")


def read_pdf(data: bytes, source: str) -> tuple[str, str, tuple[int, ...]]:
    """The text of a PDF, its title (may be empty) and the first character of each page.

    What pypdf has to say about the file is logged once, as a warning with the file's name, ``source``.

    Raises:
        ValueError: the file is encrypted with a password, or is damaged.
    """
    with _named_messages(source):
        return _read(data)


def _read(data: bytes) -> tuple[str, str, tuple[int, ...]]:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, PyPdfError

    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ValueError("it is encrypted with a password")
        pages = [_whole(page.extract_text()) for page in reader.pages]
        title = _whole(str((reader.metadata and reader.metadata.title) or ""))
    except DependencyError as error:
        raise ValueError("it is encrypted in a way that needs `pip install 'pypdf[crypto]'`") from error
    # What a damaged file raises depends on where it is damaged; pypdf wraps only a part of it.
    except (PyPdfError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, OSError) as error:
        raise ValueError(f"it is no readable PDF ({type(error).__name__}: {error})") from error
    starts, position = [], 0
    for page in pages:
        starts.append(position)
        position += len(page) + len(_BREAK)
    return _BREAK.join(pages), title, tuple(starts)


def _whole(text: str) -> str:
    return HALF_CHARACTER.sub("\ufffd", text).strip()


class _Gathering(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.messages.append(record.getMessage())


@contextlib.contextmanager
def _named_messages(source: str) -> Iterator[None]:
    """Gather what pypdf logs, which names no file, and log it as one message that does.

    Names and messages can hold any character of the file, so they are logged as Python writes strings.
    """
    pypdf = logging.getLogger("pypdf")
    gathering = _Gathering()
    with _READING:
        propagates, pypdf.propagate = pypdf.propagate, False
        pypdf.addHandler(gathering)
        try:
            yield
        finally:
            pypdf.removeHandler(gathering)
            pypdf.propagate = propagates
    if gathering.messages:
        more = f" (and {len(gathering.messages) - 1} more)" if len(gathering.messages) > 1 else ""
        logger.warning("%r: pypdf says %r%s", source, gathering.messages[0], more)
