"""BiTA's weights for a model: embeddings of mask tokens, and keys and values that these alone see. Knows no drafts.

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

from antiphon.accel.drafting.drafters import BITA_FILE, BITA_PLACES
from antiphon.accel.files import write

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VERSION = "1"
NOISE = 0.02
"""The standard deviation of what is not learned yet."""
_TENSORS = ("prefix_k", "prefix_v", "mask_emb", "sample")
_SAMPLED = 8
_NEAR, _NEARER = 0.01, 1e-4  # relative and absolute: bfloat16 rounds by 0.004, and adapters change most by more


@dataclass(frozen=True, slots=True, eq=False)
class BitaWeights:
    """A trained prefix and trained mask tokens, of one model.

    ``keys`` and ``values`` have shape (layers, key heads, prefix, size), as in a cache: after rotation and norm.
    ``masks`` has shape (masks, hidden). ``model`` is the name of the model that they were trained for and ``sample``
    some numbers of its weights, by which it is known again; ``notes`` says how they were trained.
    """

    keys: Tensor
    values: Tensor
    masks: Tensor
    sample: Tensor
    model: str = ""
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def prefix(self) -> int:
        """How many keys and values every layer has."""
        return self.keys.shape[2]

    def on(self, model: PreTrainedModel) -> BitaWeights:
        """The same where the model computes, and in its precision."""
        keys, values, masks = (each.to(model.device, model.dtype) for each in (self.keys, self.values, self.masks))
        return replace(self, keys=keys, values=values, masks=masks)

    def check(self, model: PreTrainedModel) -> None:
        """Refuse any model but the one that this was learned for.

        Raises:
            ValueError: it is another one, and which one was wanted.
        """
        wanted = tuple(self.keys.shape), tuple(self.values.shape), tuple(self.masks.shape)
        given = shape_of(model).tensors(self.prefix, len(self.masks))
        remedy = "train it for this one: antiphon bita train"
        if given != wanted:
            raise ValueError(
                f"What BiTA learned for {self.model!r} has the shapes {wanted}, and {name_of(model)!r} needs {given}; "
                f"{remedy}."
            )
        sample = sample_of(model)
        if sample.shape != self.sample.shape or not torch.allclose(sample, self.sample, _NEAR, _NEARER):
            raise ValueError(
                f"What BiTA learned belongs to {self.model!r}, and the weights of {name_of(model)!r} are others; "
                f"{remedy}."
            )

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all."""
        from safetensors.torch import save

        path = Path(path)
        tensors = dict(zip(_TENSORS, (self.keys, self.values, self.masks, self.sample), strict=True))
        facts = {"version": VERSION, "model": self.model, "notes": self.notes}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        # One entry of metadata: the order of several is random.
        write(path, save(tensors, {"bita": json.dumps(facts)}), is_needed=True)

    @classmethod
    def load(cls, path: str | Path) -> BitaWeights:
        """What was saved there.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is damaged, or holds something else.
        """
        facts, (keys, values, masks, sample) = _read(Path(path))
        return cls(keys, values, masks, sample, facts["model"], facts["notes"])


@dataclass(frozen=True, slots=True)
class Shape:
    """What the learned tensors of a model must fit: its layers, key heads, sizes of a key and a value, and width."""

    layers: int
    heads: int
    key: int
    value: int
    hidden: int

    def tensors(self, prefix: int, masks: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of keys, values and mask embeddings."""
        states = (self.layers, self.heads, prefix)
        return (*states, self.key), (*states, self.value), (masks, self.hidden)


@torch.no_grad()
def shape_of(model: PreTrainedModel) -> Shape:
    """The shape of a model's cache and of its embeddings, found by feeding it two tokens.

    Raises:
        ValueError: its layers do not all keep keys and values of one shape, or embeddings do not say all of a token.
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
            f"The layers of {name_of(model)!r} do not all keep keys and values of one shape; BiTA needs it."
        )
    if not torch.equal(model(inputs_embeds=embeddings(ids), use_cache=True, **places).logits, plain.logits):
        raise ValueError(
            f"{name_of(model)!r} makes more of a token than its embedding, so BiTA's masks are none to it."
        )
    [(heads, key, value)] = (shape for shape in shapes if shape is not None)
    return Shape(len(cache.layers), heads, key, value, embeddings.weight.shape[1])


def untrained(model: PreTrainedModel, *, prefix: int = 16, masks: int = 3, seed: int = 0) -> BitaWeights:
    """Where training begins, in float32: a random prefix, and masks that are the mean embedding and a little noise.

    Raises:
        ValueError: the model cannot be taught (see `shape_of`), or a number is out of range.
    """
    if prefix < 0 or masks < 1:
        raise ValueError(f"prefix is {prefix} and masks {masks}; BiTA needs at least 0 of the first and 1 mask.")
    random = torch.Generator().manual_seed(seed)
    shapes = shape_of(model).tensors(prefix, masks)
    keys, values, noise = (NOISE * torch.randn(shape, generator=random) for shape in shapes)
    embeddings: Any = model.get_input_embeddings()
    mean = embeddings.weight.detach().float().mean(0).cpu()
    return BitaWeights(keys, values, mean + noise, sample_of(model), name_of(model))


def sample_of(model: PreTrainedModel) -> Tensor:
    """Some numbers of every weight, in a row, by which a model is known again in any precision."""
    rows = (weight.detach()[(0,) * (weight.ndim - 1)][:_SAMPLED] for _, weight in sorted(model.named_parameters()))
    return torch.cat([row.float().cpu() for row in rows])


def bita_weights_of(drafter: object) -> BitaWeights | None:
    """The weights that a drafter needs the model to be shown; None where it has no mask tokens."""
    return getattr(drafter, "bita_weights", None)


def name_of(model: PreTrainedModel) -> str:
    """What a model is called: its name on the hub, or the last part of its folder."""
    return Path(str(model.config.name_or_path or model.config.model_type)).name


def found_beside(model: PreTrainedModel) -> tuple[BitaWeights | None, str]:
    """What BiTA learned for this model, from the file in its folder or in the hub's cache; or None, and why."""
    from transformers.utils.hub import cached_file

    for place in BITA_PLACES:
        try:
            return BitaWeights.load(str(cached_file(str(model.config.name_or_path), place, local_files_only=True))), ""
        except OSError:
            continue
        except ValueError as error:
            return None, str(error).rstrip(".")
    return None, f"no {BITA_FILE} lies in the model's folder"


def embedded(model: PreTrainedModel, tokens: Sequence[int], weights: BitaWeights) -> Tensor:
    """What tokens are fed as, of shape (1, tokens, hidden); -1 is the first mask token, -2 the second, and so on."""
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
        raise FileNotFoundError(f"There is nothing that BiTA learned at {str(path)!r}; make it: antiphon bita train.")
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["bita"])
            tensors = [file.get_tensor(name) for name in _TENSORS]
        keys, values, _, _ = tensors
        ranks = [tensor.ndim for tensor in tensors]
        is_whole = ranks == [4, 4, 2, 1] and keys.shape[:3] == values.shape[:3] and {"model", "notes"} <= facts.keys()
        if facts["version"] != VERSION or not is_whole:
            raise ValueError
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is nothing that BiTA learned, or damaged; train anew.") from error
    return facts, tensors
