"""Converted models that outlast the process: one folder for each model in the user's cache, whole or not at all.

Knows what a conversion depends on and nothing of how it is done. A folder that is damaged is made anew, and where
nothing can be kept the model is converted for this process alone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from platformdirs import user_cache_dir
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.engines.openvino import compression
from antiphon.accel.engines.openvino.runtime import core, version
from antiphon.accel.files import remove_stale_folders, sync_file, temporary_folder

if TYPE_CHECKING:
    import openvino

FORMAT = 1
"""Raised whenever models come to be converted otherwise."""

GRAPH, WEIGHTS, RECEIPT = "graph.xml", "graph.bin", "receipt.json"
"""The files of a folder; the receipt has the sums of the other two, and is written last."""

UNFINISHED = ".unfinished-"
STALE = 3600.0
"""Seconds after which an unfinished folder is nobody's: a conversion takes less."""

Convert = Callable[[], "openvino.Model"]
"""Converts the model at hand."""


def fingerprint(model: PreTrainedModel, weights: str = "") -> str:
    """All that a converted model depends on, in 32 characters: every weight, the settings, and the versions.

    Where ``weights`` have fewer bits ("int8", "int4"), how many, and who compresses them, as well.
    """
    total = hashlib.sha256()
    settings = {name: each for name, each in model.config.to_dict().items() if not name.startswith("_")}
    libraries = {"openvino": version(), "torch": torch.__version__, "transformers": transformers.__version__}
    versions = libraries | {"format": str(FORMAT)}
    if weights:
        versions |= {"weights": weights, "nncf": compression.version()}
    total.update(json.dumps([type(model).__name__, settings, versions], sort_keys=True, default=str).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(_bytes(tensor).tobytes())
    return total.hexdigest()[:32]


def folder_of(key: str) -> Path:
    """Where the converted model of this fingerprint is kept."""
    return Path(user_cache_dir("antiphon")) / "openvino" / key


def stored(folder: Path, convert: Convert) -> openvino.Model:
    """The graph in a folder, or the one that ``convert`` makes, which is kept there if it can be.

    Two processes may do so at once: each writes a folder of its own, and the one that is done last finds the other's.

    Raises:
        OSError: there is no room for the graph anywhere, not even until it is compiled.
    """
    found = read(folder)
    if found is not None:
        return found
    graph = convert()
    with suppress(OSError):
        keep(folder, graph)
        if (kept := read(folder)) is not None:
            return kept
    with tempfile.TemporaryDirectory(prefix="antiphon-", ignore_cleanup_errors=True) as beside:
        _write(Path(beside), graph)
        return _load(Path(beside))


def read(folder: Path) -> openvino.Model | None:
    """The graph of a folder that is whole, or None."""
    try:
        receipt = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
        if receipt != {name: _sum(folder / name) for name in (GRAPH, WEIGHTS)}:
            return None
        return _load(folder)
    except (OSError, ValueError, RuntimeError):
        return None


def keep(folder: Path, graph: openvino.Model) -> None:
    """Write the graph beside its folder, then put it in its place; what is there and damaged goes.

    Raises:
        OSError: nothing can be written there, or there is no room.
    """
    remove_stale_folders(folder.parent, UNFINISHED, older_than=STALE)
    with temporary_folder(folder.parent, UNFINISHED) as beside:
        _write(beside, graph)
        if read(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
            beside.rename(folder)


def _write(folder: Path, graph: openvino.Model) -> None:
    """Both files, on the disk, and then their sums."""
    import openvino

    try:
        openvino.save_model(graph, folder / GRAPH, compress_to_fp16=False)
    except RuntimeError as error:  # of a full disk OpenVINO says no more than that it failed
        raise OSError(f"The converted model cannot be written to {folder} ({error}); is the disk full?") from error
    for name in (GRAPH, WEIGHTS):
        sync_file(folder / name)
    _check(folder, graph)
    receipt = {name: _sum(folder / name) for name in (GRAPH, WEIGHTS)}
    (folder / RECEIPT).write_text(json.dumps(receipt), encoding="utf-8")
    sync_file(folder / RECEIPT)


def _check(folder: Path, graph: openvino.Model) -> None:
    """Refuse what was cut short: read again, all constants have to be there, byte by byte as many."""
    try:
        again = _load(folder)
        sizes = [_constants(each) for each in (graph, again)]
    except RuntimeError as error:
        raise OSError(f"The converted model in {folder} is not whole: {error}") from error
    if sizes[0] != sizes[1]:
        raise OSError(f"The converted model in {folder} is not whole; is the disk full?")


def _constants(graph: openvino.Model) -> int:
    large = (each for each in graph.get_ops() if each.get_type_name() == "Constant")
    return sum(size for each in large if (size := int(each.get_byte_size())) > 4096)


def _load(folder: Path) -> openvino.Model:
    return core().read_model(folder / GRAPH)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bytes(weights: Tensor) -> NDArray[np.uint8]:
    raw: NDArray[np.uint8] = weights.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw
