"""Save the vectors of an interrupted run, so that the next run into the same folder reuses them."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

import numpy as np

from antiphon.accel.files import write_file
from antiphon.retrieval.index_folder.write_lock import file_mode
from antiphon.retrieval.vector_index.flat import Vectors

_NAME = ".unfinished.npz"
_KEY_BYTES = 16


def save_unfinished(folder: Path, fingerprint: str, vectors: Mapping[str, Vectors]) -> None:
    """Save the vectors of texts; do nothing if there are none or the disk is full.

    Args:
        folder: The index folder, which the caller has locked for writing.
    """
    if not vectors:
        return
    keys = np.frombuffer(b"".join(map(_key, vectors)), np.uint8).reshape(-1, _KEY_BYTES)
    out = io.BytesIO()
    np.savez(out, fingerprint=np.array(fingerprint), keys=keys, vectors=np.stack([*vectors.values()]))
    with contextlib.suppress(OSError):
        write_file(folder / _NAME, out.getvalue(), mode=file_mode(folder))


def read_unfinished(folder: Path, fingerprint: str, texts: Iterable[str]) -> dict[str, Vectors]:
    """Return the saved vectors of texts, if the same embedder made them."""
    try:
        with np.load(io.BytesIO((folder / _NAME).read_bytes()), allow_pickle=False) as saved:
            if str(saved["fingerprint"]) != fingerprint:
                return {}
            known = dict(zip(map(bytes, saved["keys"]), saved["vectors"], strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}  # missing or damaged: the texts are embedded again
    return {text: known[key] for text in texts if (key := _key(text)) in known}


def remove_unfinished(folder: Path) -> None:
    """Remove the saved vectors."""
    (folder / _NAME).unlink(missing_ok=True)


def _key(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()
