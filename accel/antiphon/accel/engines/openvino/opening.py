"""Open the engine of a stored graph from facts about the model, without loading the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from antiphon.accel.available_memory import available_memory
from antiphon.accel.engines.openvino import lm_head
from antiphon.accel.engines.openvino.block_pool import MIN_STATES
from antiphon.accel.engines.openvino.cost import step_cost
from antiphon.accel.engines.openvino.engine import STATE_ONLY_BLOCK_BYTES, FindBigrams, OpenVINOEngine
from antiphon.accel.engines.openvino.graph import PagedGraph
from antiphon.accel.engines.openvino.paged_inputs import BLOCK_SIZE
from antiphon.accel.engines.openvino.paged_memory import block_bytes, state_bytes
from antiphon.accel.engines.openvino.runtime import PRECISIONS, use_huge_pages, version
from antiphon.accel.engines.openvino.store import Compatibility, folder_of, load_compatibility, load_stored
from antiphon.accel.engines.openvino.weights import Owners, WeightArrays, attach_arrays
from antiphon.accel.engines.torch.bigrams import BigramFacts, recorded_bigrams
from antiphon.accel.files import safetensors_header
from antiphon.accel.processor import processor_flags

if TYPE_CHECKING:
    import openvino

    from antiphon.accel.engines.fair_lock import FairLock

DEFAULT_MEMORY, MAX_MEMORY_SHARE = 2**30, 0.25
"""Default size of the KV cache in bytes, and maximum share of the available memory. The default
size grows to the size of one sequence of the model's full context, if that is more."""

WORKING_MEMORY = 2 * 10**8
"""Bytes that compilation needs besides the weights."""

FUSING = "amx_bf16"
"""Instruction set with which OpenVINO runs whole MLP blocks as one operation."""

MIN_HUGE = 2**26
"""Fewer bytes of weights are not moved to huge pages, because CPU caches hold most of them."""

TYPES: dict[str, tuple[type[Any], str]] = {
    "BF16": (np.uint16, "bf16"),
    "F16": (np.uint16, "f16"),
    "F32": (np.float32, "f32"),
}
"""Types of safetensors files: numpy's type for their bits, and OpenVINO's name."""

Places = dict[str, tuple[str, str]]
"""For the name of each large weight's parameter: the file with the weight, and its name there."""


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The facts about a model that are needed to compile its stored graph.

    Attributes:
        key: Fingerprint of the model, see `store.fingerprint`.
        dtype: Torch's name of the model's precision.
        weights: "int8" or "int4" for compressed weights, or empty.
        weight_bytes: Size of the large weights.
        head_bytes: Size of the LM head's matrix in 16 bits; 0 if the model has none.
        windows: Sliding window of each layer in tokens, 0 for none.
        max_positions: Length of the model's context in tokens; None if unlimited.
    """

    key: str
    dtype: str
    threads: int
    weights: str
    weight_bytes: int
    head_bytes: int
    windows: Sequence[int]
    max_positions: int | None

    @property
    def precision(self) -> str:
        """OpenVINO's name of the precision."""
        return PRECISIONS[self.dtype]

    @property
    def setting(self) -> str:
        """The setting (precision and threads) for which a compatibility result is stored."""
        return f"{self.precision}-{self.threads}"

    @property
    def fuses_mlp(self) -> bool:
        """Whether the CPU can run whole MLP blocks, and the memory suffices for float16 weights.

        Fused blocks need one more copy of their weights until the first forward pass.
        """
        if self.weights or self.dtype != "bfloat16" or FUSING not in processor_flags():
            return False
        return 2 * self.weight_bytes + WORKING_MEMORY <= available_memory()


def build_engine(
    facts: GraphFacts,
    converted: openvino.Model,
    owners: Owners,
    *,
    memory: int | None,
    max_length: int | None = None,
    gives_hidden_states: bool = False,
    lock: FairLock | None = None,
    find_bigrams: FindBigrams | None = None,
) -> OpenVINOEngine:
    """Compile a graph whose weights are attached, and return its engine.

    Args:
        owners: Owners of the memory of the weights.
        memory: Size of the KV cache in bytes; None for the default.
        max_length: Maximum length of a request in tokens, see `ModelEngine.max_length`.
        gives_hidden_states: Whether forward passes also return hidden states, for a draft head.
    """
    graph = PagedGraph(
        converted,
        weights=owners,
        precision=facts.precision,
        threads=facts.threads,
        splits_head=facts.head_bytes >= lm_head.MIN_BYTES,
        fuses_mlp=facts.fuses_mlp,
        gives_hidden_states=gives_hidden_states,
        is_compressed=bool(facts.weights),
    )
    return OpenVINOEngine(
        graph,
        memory=_default_memory(graph, max_length or facts.max_positions) if memory is None else memory,
        window=min((window for window in facts.windows if window), default=None),
        max_positions=facts.max_positions,
        max_length=max_length,
        lock=lock,
        find_bigrams=find_bigrams,
    )


def open_engine(
    facts: GraphFacts,
    places: Places,
    bigrams: BigramFacts,
    *,
    memory: int | None,
    if_faster: bool,
) -> tuple[OpenVINOEngine, str] | None:
    """Return the engine of a stored graph and why it is used; None if it cannot be opened or used.

    Args:
        places: Where the weights are; empty if the graph contains them.
        if_faster: Return no engine if its steps are slower than torch's, or were not compared.
    """
    result = load_compatibility(facts.key, facts.setting)
    if result is None or rejection(result, if_faster=if_faster) or (if_faster and result.speedup is None):
        return None
    graph = load_stored(folder_of(facts.key))
    if graph is None or (not facts.weights and memory_shortage(facts.weight_bytes)):
        return None
    owners = attach_arrays(graph, mapped_weights(places))
    find = partial(recorded_bigrams, bigrams)
    engine = build_engine(facts, graph, owners, memory=memory, find_bigrams=find)
    engine.set_cost_measurement(lambda engine, remeasure: step_cost(engine, facts.key, remeasure=remeasure))
    arrange_memory(engine, facts)
    return engine, description(engine, result, facts.weights)


def arrange_memory(engine: OpenVINOEngine, facts: GraphFacts) -> None:
    """Start a thread that makes the system provide the KV cache's memory, and moves packed weights to huge pages."""
    arrange = partial(_arrange_memory, engine, facts.weight_bytes)
    Thread(target=arrange, name="antiphon-memory", daemon=True).start()


def _arrange_memory(engine: OpenVINOEngine, weight_bytes: int) -> None:
    engine.preallocate()
    if weight_bytes > MIN_HUGE:
        use_huge_pages()


def memory_shortage(weight_bytes: int) -> str | None:
    """Return why the packed copies of the weights do not fit into memory, or None.

    Of 16-bit weights that are computed in float32, there are two copies: for up to six rows, and for more.

    Args:
        weight_bytes: Size of the large weights in the model's precision.
    """
    needed, available = weight_bytes + WORKING_MEMORY, available_memory()
    if needed <= available:
        return None
    return (
        f"OpenVINO needs {needed / 1e9:.1f} GB for its copies of the weights, and {available / 1e9:.1f} GB of memory "
        "are available."
    )


def mapped_weights(places: Places) -> WeightArrays:
    """Return weights as memory maps of their files.

    Raises:
        OSError, KeyError: A file, or a weight in it, is missing.
    """
    files = {path: _mapped_file(Path(path)) for path in {path for path, _ in places.values()}}
    return {name: files[path](own) for name, (path, own) in places.items()}


def _mapped_file(path: Path) -> Callable[[str], tuple[Any, str]]:
    """Return a function that returns a named tensor of a safetensors file, and OpenVINO's name of its type."""
    raw = safetensors_header(path)
    header, memory = json.loads(raw), np.memmap(path, dtype=np.uint8, mode="r")

    def tensor(name: str) -> tuple[Any, str]:
        entry = header[name]
        start, end = (8 + len(raw) + offset for offset in entry["data_offsets"])
        dtype, kind = TYPES[entry["dtype"]]
        return np.asarray(memory[start:end]).view(dtype).reshape(entry["shape"]), kind

    return tensor


def places_of(arrays: WeightArrays, files: Sequence[Path]) -> Places | None:
    """Return where the files contain exactly these weights; None if any weight is missing in the files.

    Args:
        files: Safetensors files.
    """
    found: dict[tuple[object, ...], tuple[str, str]] = {}
    for path in files:
        tensor = _mapped_file(path)
        for name, entry in json.loads(safetensors_header(path)).items():
            if name != "__metadata__" and entry["dtype"] in TYPES and prod(entry["shape"]):
                found.setdefault(_sample(*tensor(name)), (str(path), name))
    places: Places = {}
    for name, (array, kind) in arrays.items():
        place = found.get(_sample(array, kind))
        if place is None or not np.array_equal(_bits(mapped_weights({name: place})[name][0]), _bits(array)):
            return None
        places[name] = place
    return places


def _sample(array: Any, kind: str) -> tuple[object, ...]:
    """Return type and shape of a weight and a few of its values."""
    flat = _bits(array).reshape(-1)
    return kind, array.shape, flat[:: max(len(flat) // 4096, 1)].tobytes()


def _bits(array: Any) -> Any:
    return array.view(np.uint32 if array.dtype.itemsize == 4 else np.uint16)


def rejection(result: Compatibility, *, if_faster: bool) -> str:
    """Return why the engine is not used, or an empty string."""
    if result.failure or not if_faster or result.speedup is None or result.speedup > 1:
        return result.failure
    return f"OpenVINO's steps take {1 / result.speedup:.2f} times as long as torch's here."


def description(engine: OpenVINOEngine, result: Compatibility, weights: str) -> str:
    """Return why the engine is used."""
    name = f"OpenVINO {version()} in {engine.graph.precision}"
    if weights:
        return (
            f"{name} with {weights} weights, as requested: a different model than the loaded one. Its outputs are the "
            "same with and without drafts."
        )
    speedup = "" if result.speedup is None else f"; its steps are {result.speedup:.1f} times as fast as torch's here"
    return f"{name} agrees with torch{speedup}."


def _default_memory(graph: PagedGraph, max_positions: int | None) -> int:
    """Return the default size of the KV cache in bytes; at least the engine's minimum size."""
    block = block_bytes(graph.cache_shapes, graph.precision) or STATE_ONLY_BLOCK_BYTES
    states = MIN_STATES * state_bytes(graph.state_shapes)
    full_context = states + block * (1 + (max_positions or 0) // BLOCK_SIZE)
    most = int(MAX_MEMORY_SHARE * available_memory())
    return max(min(max(DEFAULT_MEMORY, full_context), most), 2 * block + states)
