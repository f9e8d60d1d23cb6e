"""Estimate the memory that a model needs, from the headers of its files.

No weights are loaded and torch is not imported, so a model that does not fit is refused at once.
"""

from __future__ import annotations

import json
import math
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from antiphon.accel.available_memory import available_memory
from antiphon.accel.files import safetensors_header
from antiphon.accel.hub_download import cached_file, parts_of_weights
from antiphon.accel.processor import has_bfloat16_units

BITS = {"F64": 64, "F32": 32, "BF16": 16, "F16": 16}
"""Bits of the floating-point types of safetensors files."""

PRECISION_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}

LIBRARIES = {"openvino": 900_000_000, "torch": 600_000_000}
"""Bytes of Python, libraries and buffers for each engine (models of 0.1 to 3 billion parameters)."""

PACKED_SHARE = 1.1
"""Size of OpenVINO's packed copy of 16-bit weights, relative to the memory-mapped weights."""

COMPRESSED_BITS = {"int8": 8.1, "int4": 4.8}
"""Bits per weight, including its share of a scale. With "int4", embedding and head keep 8 bits."""

COMPRESSED_SHARE = 1.1
"""Memory of a compressed model, relative to its weights. The first start also needs the largest matrix in float32."""

DEFAULT_CONTEXT = 4096
"""Number of tokens whose KV cache an estimate includes, unless the model has fewer positions."""

OTHER_PARTS = re.compile(
    r"(^|\.)(vision|visual|image|video|audio|speech|sound|talker|token2wav|code2wav|embed_vision|embed_audio"
    r"|embed_tokens_extend|multi_?modal|mm_|connector|projector|qformer|perceiver|vqmodel|encoder|high_res)"
)
"""Matches names of weights of a multimodal checkpoint that do not belong to its text model."""

GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


class NotEnoughMemoryError(MemoryError):
    """A model needs more memory than this process may use."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The estimated memory of a model, in bytes.

    Attributes:
        engine: "openvino" or "torch".
        precision: Precision of the weights: the name of a torch dtype, "int8" or "int4".
        weights: All copies of the weights in the process, without memory-mapped files.
        head: Weights of the draft head, without weights that it shares with the model.
        cache: KV cache of ``context`` tokens.
        context: Number of tokens in the KV cache.
    """

    engine: str
    precision: str
    parameters: int
    weights: int
    cache: int
    context: int
    libraries: int
    head: int = 0

    @property
    def total(self) -> int:
        """Bytes of weights, draft head, KV cache and libraries together."""
        return self.weights + self.head + self.cache + self.libraries

    def __str__(self) -> str:
        return (
            f"about {gigabytes(self.total)} ({self.parameters / 1e9:.2f} billion weights in {self.precision} "
            f"{gigabytes(self.weights)}, {f'draft head {gigabytes(self.head)}, ' if self.head else ''}"
            f"KV cache of {self.context:,} tokens {gigabytes(self.cache)}, libraries {gigabytes(self.libraries)})"
        )


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """Facts from the headers and the configuration of a checkpoint.

    Attributes:
        parameters: Number of floating-point parameters for each type name of safetensors.
        largest: Number of parameters in the largest tensor; 0 if unknown.
        other_bytes: Bytes of all other tensors, such as packed 4-bit weights.
        head: Number of parameters of the draft head.
    """

    parameters: Mapping[str, int]
    largest: int
    other_bytes: int
    config: Mapping[str, Any]
    head: int = 0

    @property
    def stored_bits(self) -> int:
        """Bits per parameter of the most frequent type."""
        return BITS[max(self.parameters, key=lambda name: self.parameters[name])] if self.parameters else 16


def check_memory(
    name_or_path: str | Path,
    *,
    device: object = None,
    dtype: object = "auto",
    engine: str = "auto",
    weights: str | None = None,
    cache: int | None = None,
    head: str | Path | None = "auto",
    location: Mapping[str, Any] | None = None,
) -> MemoryEstimate | None:
    """Raise an error if a model needs more memory than this process may use; return the estimate.

    Models of unknown size (without safetensors files, or not reachable) are not checked.

    Args:
        name_or_path: Folder of a checkpoint, or name on the hub.
        device: Requested device; None: a GPU if there is one.
        dtype: Requested precision; "auto": the checkpoint's own, but float32 on a CPU without bfloat16 units.
        engine: "auto", "torch" or "openvino". With "auto", the model only has to fit with one of
            the two engines.
        weights: "int8" or "int4" for compressed weights, or None.
        cache: Requested size of the KV cache in bytes; None: the size for `DEFAULT_CONTEXT` tokens,
            or for the model's context window if the window is shorter.
        head: The draft head, as for `LanguageModel`.
        location: Options that locate a checkpoint on the hub, such as ``revision``, ``cache_dir`` and ``token``.

    Raises:
        NotEnoughMemoryError: The model does not fit. The message has the figures and the alternatives that fit.
    """
    place = _place(device)
    checkpoint = None if place is None else _checkpoint(str(name_or_path), location or {}, head)
    if place is None or checkpoint is None:
        return None
    precision = weights or _precision(dtype, checkpoint, is_cpu=place == "CPU")
    engines = _engines(engine, weights, checkpoint.config) if place == "CPU" else ["torch"]
    estimates = [_estimate(checkpoint, each, precision, cache) for each in engines]
    least, available = min(estimates, key=lambda each: each.total), _available(place, device)
    if least.total <= available:
        return least
    found = _alternatives(checkpoint, least, available) if place == "CPU" else ["device='cpu'"]
    raise NotEnoughMemoryError(
        f"{str(name_or_path)!r} needs {least}, and {gigabytes(available)} of memory are available on this {place}; "
        f"take {', '.join([*found, 'a smaller model'])}, or a machine with more memory."
    )


def estimate_memory(
    name_or_path: str | Path,
    *,
    engine: str = "openvino",
    precision: str = "bfloat16",
    head: str | Path | None = "auto",
) -> MemoryEstimate | None:
    """Return the estimated memory of a model; None if its size is unknown.

    Args:
        name_or_path: Folder of a checkpoint, or name on the hub.
        engine: "openvino" or "torch".
        precision: "float32", "bfloat16", "float16", "int8" or "int4".
        head: The draft head, as for `LanguageModel`.
    """
    checkpoint = _checkpoint(str(name_or_path), {}, head)
    return None if checkpoint is None else _estimate(checkpoint, engine, precision)


def gigabytes(size: int) -> str:
    """Return a size in bytes as text: "3.1 GB"."""
    return f"{size / 1e9:.1f} GB"


def _alternatives(checkpoint: _Checkpoint, refused: MemoryEstimate, available: int) -> list[str]:
    """Return the alternatives that would fit, each as a phrase for the message."""
    found = []
    if refused.context > 1024:
        shorter = replace(refused, cache=refused.cache * 1024 // refused.context, context=1024)
        if shorter.total <= available:
            found.append(f"a KV cache of 1,024 tokens (memory={shorter.cache})")
    if refused.head and refused.total - refused.head <= available:
        found.append("head=None, without the draft head")
    is_quantized = "quantization_config" in checkpoint.config
    if not is_quantized and _has_openvino():
        for weights in COMPRESSED_BITS:
            compressed = _estimate(checkpoint, "openvino", weights, refused.cache)
            if weights != refused.precision and compressed.total <= available:
                found.append(f"weights={weights!r} (about {gigabytes(compressed.total)}; another model)")
    return found


def _estimate(checkpoint: _Checkpoint, engine: str, precision: str, cache: int | None = None) -> MemoryEstimate:
    parameters = sum(checkpoint.parameters.values())
    positions = _text_config(checkpoint.config).get("max_position_embeddings")
    tokens = min(DEFAULT_CONTEXT, positions or DEFAULT_CONTEXT)
    bits = PRECISION_BITS.get(precision, 16)
    return MemoryEstimate(
        engine=engine,
        precision=precision,
        parameters=parameters,
        weights=round(_weight_bytes(checkpoint, engine, precision, parameters)) + checkpoint.other_bytes,
        cache=_cache_bytes(checkpoint.config, bits) * tokens if cache is None else cache,
        context=tokens,
        libraries=LIBRARIES[engine],
        head=checkpoint.head * bits // 8,
    )


def _weight_bytes(checkpoint: _Checkpoint, engine: str, precision: str, parameters: int) -> float:
    if precision in COMPRESSED_BITS:
        return COMPRESSED_SHARE * parameters * COMPRESSED_BITS[precision] / 8 + 4 * checkpoint.largest
    size = parameters * PRECISION_BITS.get(precision, 16) / 8
    if engine == "openvino" and precision != "float32":
        return PACKED_SHARE * size
    return size


def _cache_bytes(config: Mapping[str, Any], bits: int) -> int:
    """Return the KV cache's bytes per token; 0 if the configuration lacks the usual fields."""
    text = _text_config(config)
    layers, heads = text.get("num_hidden_layers", text.get("n_layer")), text.get("num_attention_heads")
    heads = heads or text.get("n_head")
    if not layers or not heads:
        return 0
    size = text.get("head_dim") or text.get("hidden_size", text.get("n_embd", 0)) // heads
    return int(2 * layers * (text.get("num_key_value_heads") or heads) * size * bits // 8)


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("text_config")
    return found if isinstance(found, Mapping) else config


def _precision(dtype: object, checkpoint: _Checkpoint, *, is_cpu: bool) -> str:
    """Return the name of the precision in which a model is loaded."""
    if dtype != "auto" and dtype is not None:
        return str(dtype).removeprefix("torch.")
    if checkpoint.stored_bits == 16 and (not is_cpu or has_bfloat16_units()):
        return "bfloat16"
    return "float64" if checkpoint.stored_bits == 64 else "float32"


def _engines(engine: str, weights: str | None, config: Mapping[str, Any]) -> list[str]:
    """Return the engines that may run the model on the CPU."""
    if weights:
        return ["openvino"]
    if "quantization_config" in config or not _has_openvino():
        return ["torch"]
    return [engine] if engine in LIBRARIES else ["openvino", "torch"]


def _has_openvino() -> bool:
    return find_spec("openvino") is not None and platform.machine() in ("x86_64", "AMD64")


def imported_torch() -> Any:
    """Return torch if its import is complete; None if not, or if another thread imports it now."""
    torch = sys.modules.get("torch")
    return None if getattr(getattr(torch, "__spec__", None), "_initializing", False) else torch


def is_on_cpu(device: object) -> bool:
    """Return whether a model for this device is certainly on the CPU, without importing torch."""
    return _place(device) == "CPU"


def _place(device: object) -> str | None:
    """Return the model's place, "CPU" or "GPU"; None for other devices, or if only torch knows."""
    torch = imported_torch()
    if device is not None:
        kind = str(device).partition(":")[0]
        return "CPU" if kind == "cpu" else "GPU" if torch is not None and kind == "cuda" else None
    if torch is not None:
        if torch.cuda.is_available():
            return "GPU"
        return None if torch.backends.mps.is_available() else "CPU"
    return None if sys.platform == "darwin" or any(Path(each).exists() for each in GPU_DEVICES) else "CPU"


def _available(place: str, device: object) -> int:
    """Return the available bytes, including the memory that this process already uses for libraries."""
    if place == "CPU":
        return available_memory() + min(psutil.Process().memory_info().rss, LIBRARIES["torch"])
    import torch

    return torch.cuda.mem_get_info(torch.device("cuda" if device is None else str(device)))[0]


def _checkpoint(name: str, location: Mapping[str, Any], head: str | Path | None) -> _Checkpoint | None:
    """Read the headers and the configuration of a checkpoint and its draft head."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        if (found := _read(name, location)) is None:
            return None
        weights, config, text = *found, _text_config(found[1])
        mtp = {key for key in weights if _is_mtp(key, text.get("num_hidden_layers", sys.maxsize))}
        heads = {key: weights[key] for key in mtp} if head == "auto" else {}
        if head not in ("auto", None) and (other := _read(str(head), {})):
            heads = other[0]
        shared = [text.get("vocab_size"), text.get("hidden_size")]  # embeddings and LM head are in memory once
        own = _counts({key: tensor for key, tensor in heads.items() if tensor["shape"] != shared})[0]
        loaded = _counts({key: tensor for key, tensor in weights.items() if key not in mtp})
        return _Checkpoint(*loaded, config=config, head=sum(own.values()))
    return None  # the loader names what is wrong with the files


def _is_mtp(name: str, layers: int) -> bool:
    """Return whether a weight belongs to an MTP layer.

    In some checkpoints, MTP layers have the numbers after the model's own layers.
    """
    layer = re.search(r"(^|\.)(?:layers\.(\d+)|mtp)\.", name)
    return layer is not None and (layer[2] is None or int(layer[2]) >= layers)


def _read(name: str, location: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the headers of weights by name, and the configuration, from a folder, the hub's cache or the hub."""
    folder = Path(name)
    if not folder.is_dir():
        if (cached := _cached_folder(name, location)) is None:
            return _on_hub(name, location)
        folder = cached
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        headers = [json.loads(safetensors_header(path)) for path in _weight_files(folder)]
        if headers:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            return _text_weights(headers, config), config
    return None


def _weight_files(folder: Path) -> list[Path]:
    """Return the weight files that are loaded; some checkpoints contain the same weights in other files, too."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / name for name in parts_of_weights(index)]
    whole = folder / "model.safetensors"
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


def _cached_folder(name: str, location: Mapping[str, Any]) -> Path | None:
    """Return the folder of a downloaded checkpoint in the hub's cache."""
    with suppress(ImportError, ValueError, OSError):
        options = {"cache": location.get("cache_dir") or None, "revision": location.get("revision") or None}
        found = cached_file(name, "config.json", **options)
        if found is not None and any(found.parent.glob("*.safetensors")):
            return found.parent
    return None


def _on_hub(name: str, location: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Read the headers on the hub without downloading the weights."""
    if location.get("local_files_only") or not name or name.count("/") > 1:
        return None
    with suppress(Exception):  # whatever is wrong, the loader's message is better
        from huggingface_hub import get_safetensors_metadata, hf_hub_download

        options = {key: location[key] for key in ("revision", "token") if location.get(key)}
        config = json.loads(Path(hf_hub_download(name, "config.json", **options)).read_text(encoding="utf-8"))
        files = get_safetensors_metadata(name, **options).files_metadata.values()
        headers = [{key: vars(tensor) for key, tensor in file.tensors.items()} for file in files]
        return _text_weights(headers, config), config
    return None


def _text_weights(headers: list[dict[str, Any]], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of the weights that are loaded; of a multimodal checkpoint, only the text model is loaded."""
    is_text = _text_config(config) is config and not config.get("vision_config")
    weights = {name: tensor for header in headers for name, tensor in header.items() if name != "__metadata__"}
    return {name: tensor for name, tensor in weights.items() if is_text or not OTHER_PARTS.search(name)}


def _counts(weights: Mapping[str, Any]) -> tuple[dict[str, int], int, int]:
    """Return three values: floats by type, floats in the largest tensor, and bytes of tensors without floats."""
    floating: dict[str, int] = {}
    largest = other = 0
    for tensor in weights.values():
        kind, (start, end) = tensor["dtype"], tensor["data_offsets"]
        if kind in BITS:
            count = math.prod(tensor["shape"])
            floating[kind] = floating.get(kind, 0) + count
            largest = max(largest, count)
        else:
            other += end - start
    return floating, largest, other
