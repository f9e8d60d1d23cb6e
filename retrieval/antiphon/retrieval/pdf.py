"""Text and pages of a PDF file, through pypdf. Knows nothing of folders."""

from __future__ import annotations

import io
import re

_BREAK = "\n\n"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def read_pdf(data: bytes) -> tuple[str, str, tuple[int, ...]]:
    """The text of a PDF, its title (may be empty) and the first character of each page.

    Raises:
        ValueError: the file is encrypted with a password, or is damaged.
    """
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, PyPdfError

    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ValueError("it is encrypted with a password")
        pages = [_LONE_SURROGATE.sub("\ufffd", page.extract_text()).strip() for page in reader.pages]
        title = str((reader.metadata and reader.metadata.title) or "").strip()
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
