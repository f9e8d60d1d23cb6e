"""The files from which a model was loaded. They identify the weights, which need not be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A safetensors file of a checkpoint, as it was when the model was loaded.

    Attributes:
        path: Path of the file, with symbolic links resolved.
        identity: Path, size, modification time, inode, and a digest of the header, which lists all tensors.
    """

    path: Path
    identity: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files from which a model was loaded.

    Attributes:
        versions: Address and version counter (of torch) of each parameter after loading.
    """

    files: tuple[CheckpointFile, ...]
    versions: tuple[tuple[int, int], ...]
