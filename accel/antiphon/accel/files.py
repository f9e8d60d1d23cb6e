"""Files in the user's cache, which may be full, foreign or read by others at any time."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write the file whole or not at all; a cache that cannot be written, or is full, is done without."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, beside = tempfile.mkstemp(prefix=path.stem, dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            Path(beside).replace(path)
        finally:
            Path(beside).unlink(missing_ok=True)
