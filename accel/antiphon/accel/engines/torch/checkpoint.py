"""The files from which a model was loaded. The files identify the weights, so that the weights need not be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WeightsVersion: TypeAlias = tuple[tuple[int, int], ...]
"""Address and version counter of each parameter: they show if weights are moved or overwritten."""


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
        versions: Version of the weights after loading.
    """

    files: tuple[CheckpointFile, ...]
    versions: WeightsVersion


def weights_version(model: PreTrainedModel) -> WeightsVersion:
    """Return the address and the number of changes of every weight."""
    return tuple((each.data_ptr(), 0 if each.is_inference() else each._version) for each in model.parameters())
