"""BiTA weights of a model: embeddings of mask tokens, and the keys and values of a prefix.

Lin et al. 2024, "BiTA: Bi-Directional Tuning for Lossless Acceleration in Large Language Models", section 3.1.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import Cache

from antiphon.accel.drafting.drafters import BITA_FILE, BITA_PLACES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VERSION = "1"
TENSORS = ("prefix_k", "prefix_v", "mask_emb", "sample")
_SAMPLE_SIZE = 8  # how many numbers of each parameter identify the model
_RELATIVE, _ABSOLUTE = 0.01, 1e-4  # bfloat16 rounds by 0.4 %, adapters change most weights by more


@dataclass(frozen=True, slots=True, eq=False)
class BitaWeights:
    """A trained prefix and trained mask tokens, for one model.

    Attributes:
        keys: Keys of the prefix after norm and rotation, shape (layers, key heads, prefix, size).
        values: Values of the prefix, shape (layers, key heads, prefix, size).
        masks: Embeddings of the mask tokens, shape (masks, hidden).
        sample: The first numbers of each of the model's parameters. They identify the model.
        model: Name of the model for which the weights were trained.
        notes: How the weights were trained.
    """

    keys: Tensor
    values: Tensor
    masks: Tensor
    sample: Tensor
    model: str = ""
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def prefix(self) -> int:
        """Length of the prefix, in tokens."""
        return self.keys.shape[2]

    def to_model(self, model: PreTrainedModel) -> BitaWeights:
        """Return the weights on the model's device and in its precision."""
        keys, values, masks = (each.to(model.device, model.dtype) for each in (self.keys, self.values, self.masks))
        return replace(self, keys=keys, values=values, masks=masks)

    def check(self, model: PreTrainedModel) -> None:
        """Raise an error if the weights were trained for another model.

        Raises:
            ValueError: The weights were trained for a model with other shapes or parameters.
        """
        wanted = tuple(self.keys.shape), tuple(self.values.shape), tuple(self.masks.shape)
        given = tensor_shapes(model, self.prefix, len(self.masks))
        remedy = "train them for this model, see recipes/bita"
        if given != wanted:
            raise ValueError(
                f"The BiTA weights for {self.model!r} have the shapes {wanted}, "
                f"and {model_name(model)!r} needs {given}; {remedy}."
            )
        sample = weight_sample(model)
        if sample.shape != self.sample.shape or not torch.allclose(sample, self.sample, _RELATIVE, _ABSOLUTE):
            raise ValueError(
                f"The BiTA weights belong to {self.model!r}, and the weights of {model_name(model)!r} are others; "
                f"{remedy}."
            )

    @classmethod
    def load(cls, path: str | Path) -> BitaWeights:
        """Load weights from a file.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged, or contains no BiTA weights.
        """
        facts, (keys, values, masks, sample) = _read(Path(path))
        return cls(keys, values, masks, sample, facts["model"], facts["notes"])


@torch.no_grad()
def tensor_shapes(model: PreTrainedModel, prefix: int, masks: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of BiTA's keys, values and mask embeddings; runs the model on two tokens.

    Raises:
        ValueError: Not all layers cache keys and values of the same shape, or the model uses token
            ids for more than the input embedding.
    """
    ids = torch.tensor([[0, 1]], device=model.device)
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    places = {"position_ids": torch.tensor([[0, 1]], device=model.device)} if takes_positions else {}
    embeddings: Any = model.get_input_embeddings()
    plain = model(input_ids=ids, use_cache=True, **places)
    cache = plain.get("past_key_values")
    shapes = {_states(layer) for layer in getattr(cache, "layers", ())}
    if len(shapes) != 1 or None in shapes:
        raise ValueError(
            f"The layers of {model_name(model)!r} do not all cache keys and values of one shape, which BiTA needs."
        )
    if not torch.equal(model(inputs_embeds=embeddings(ids), use_cache=True, **places).logits, plain.logits):
        raise ValueError(
            f"{model_name(model)!r} uses more of a token than its embedding, so it cannot have BiTA's mask tokens."
        )
    [(heads, key, value)] = (shape for shape in shapes if shape is not None)
    states = (len(cache.layers), heads, prefix)
    return (*states, key), (*states, value), (masks, embeddings.weight.shape[1])


def weight_sample(model: PreTrainedModel) -> Tensor:
    """Return the first numbers of each parameter, in float32 to compare models in any precision."""
    rows = (weight.detach()[(0,) * (weight.ndim - 1)][:_SAMPLE_SIZE] for _, weight in sorted(model.named_parameters()))
    return torch.cat([row.float().cpu() for row in rows])


def bita_weights_of(drafter: object) -> BitaWeights | None:
    """Return the BiTA weights of a drafter; None if it drafts no mask tokens."""
    return getattr(drafter, "bita_weights", None)


def model_name(model: PreTrainedModel) -> str:
    """Return the last part of the model's hub name or folder."""
    return Path(str(model.config.name_or_path or model.config.model_type)).name


def find_bita_weights(model: PreTrainedModel) -> tuple[BitaWeights | None, str]:
    """Load BiTA weights from the model's folder or the hub's cache; or return None and why not."""
    from transformers.utils.hub import cached_file

    for place in BITA_PLACES:
        try:
            return BitaWeights.load(str(cached_file(str(model.config.name_or_path), place, local_files_only=True))), ""
        except OSError:
            continue
        except ValueError as error:
            return None, str(error).rstrip(".")
    return None, f"no {BITA_FILE} lies in the model's folder"


def embed_tokens(model: PreTrainedModel, tokens: Sequence[int], weights: BitaWeights) -> Tensor:
    """Return the embeddings of tokens, of shape (1, tokens, hidden).

    Args:
        tokens: Token ids; -1 is the first mask token, -2 the second one, and so on.
        weights: Embeddings of the mask tokens, on the model's device.
    """
    ids = torch.tensor(tokens, device=model.device)
    states: Tensor = model.get_input_embeddings()(ids.clamp(min=0))
    return torch.where(ids[:, None] < 0, weights.masks[(-1 - ids).clamp(min=0)].to(states.dtype), states)[None]


def _states(layer: Any) -> tuple[int, int, int] | None:
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None or keys.ndim != 4:
        return None
    return keys.shape[1], keys.shape[3], values.shape[3]


def _read(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"There are no BiTA weights at {str(path)!r}; train them, see recipes/bita.")
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["bita"])
            tensors = [file.get_tensor(name) for name in TENSORS]
        keys, values, _, _ = tensors
        ranks = [tensor.ndim for tensor in tensors]
        is_whole = ranks == [4, 4, 2, 1] and keys.shape[:3] == values.shape[:3] and {"model", "notes"} <= facts.keys()
        if facts["version"] != VERSION or not is_whole:
            raise ValueError
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} holds no BiTA weights, or is damaged; train them again, see recipes/bita."
        ) from error
    return facts, tensors


class BitaCache(Cache):
    """A view of another cache for one forward pass. The view adds a learned prefix after the rows.

    The prefix is stored in the other cache, and removed together with the rejected rows; so it does
    not remain between two steps. The other cache can be of any kind from which rows can be removed.
    The prefix may be in any columns of the cache, because the mask determines which rows attend to
    it.
    """

    def __init__(self, cache: Cache, weights: BitaWeights) -> None:
        super().__init__(layers=cache.layers)
        self._cache = cache
        self._weights = weights

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the rows and the prefix to a layer, and return all of its keys and values."""
        keys = _append_prefix(key_states, self._weights.keys[layer_idx])
        values = _append_prefix(value_states, self._weights.values[layer_idx])
        states: tuple[Tensor, Tensor] = self._cache.update(keys, values, layer_idx, *args, **kwargs)
        return states


def _append_prefix(states: Tensor, prefix: Tensor) -> Tensor:
    """Append the prefix (heads, prefix, size) to states of shape (batch, heads, rows, size)."""
    return torch.cat([states, prefix.to(states).expand(states.shape[0], -1, -1, -1)], dim=2)
