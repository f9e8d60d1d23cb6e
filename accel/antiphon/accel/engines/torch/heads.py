"""Draft heads on torch: the MTP layers of a checkpoint, and EAGLE-3 heads in the format of speculators.

The heads use the embeddings of the model; MTP layers also use its LM head. Heads that transformers
loads as separate models are in `antiphon.accel.engines.torch.assistants`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import embedding, linear
from transformers import AutoConfig, AutoModel, Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import MtpModel
from transformers.utils.hub import cached_file

from antiphon.accel.drafting.drafters.head import MAX_DEPTH, DraftHead, Guesses, HeadSession, HeadStats, HiddenStates
from antiphon.accel.engines.torch.assistants import (
    GEMMA4_TYPES,
    DFlashHead,
    Gemma4Head,
    guesses_of,
    is_dflash,
    num_bytes,
    output_weight,
)
from antiphon.accel.engines.torch.head_sessions import HeadModule, MtpLayersSession, TorchHeadSession
from antiphon.accel.quiet_loading import quiet_loading

AUTO = "auto"
"""The head in the checkpoint itself, if there is one."""

MTP_COUNTS = ("num_mtp_layers", "mtp_num_hidden_layers", "num_nextn_predict_layers")
"""Names that configurations give to the number of MTP layers; transformers knows the first one."""

EAGLE_LAYERS = 3
"""Number of the model's layers whose hidden states an EAGLE-3 head reads."""


class TorchHead(DraftHead):
    """A `DraftHead` of one layer, or of several MTP layers, on torch.

    Args:
        module: The layer or layers.
        session: Makes a session of the module.
        max_depth: As in `DraftHead`.
    """

    def __init__(
        self,
        module: HeadModule,
        session: Callable[[Any], HeadSession] = TorchHeadSession,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self.module, self._session, self.max_depth = module, session, max_depth
        self.name, self.layers, self.num_bytes = module.name, module.layers, module.num_bytes
        self.stats = HeadStats()

    def session(self, cache: Callable[[], Any]) -> HeadSession:
        """Return the session of a new text. ``cache`` is ignored."""
        return self._session(self.module)


class MtpModule:
    """The MTP layers of a model's own checkpoint.

    If there is only one layer, it is applied to its own output repeatedly.

    Args:
        model: The model. Its configuration has the number of MTP layers.
        count: Number of MTP layers.

    Attributes:
        find_guesses: Implements `guesses` with the LM head of another engine; None: torch multiplies by ``weight``.
    """

    layers: tuple[int, ...] = (-1,)
    find_guesses: Callable[[Tensor, int], Guesses] | None = None

    def __init__(self, model: PreTrainedModel, count: int) -> None:
        self.name, self.count = "MTP layer" if count == 1 else f"head of {count} MTP layers", count
        self.weight, owner = output_weight(model), cast(Any, model)
        # transformers takes all weights that match these patterns for those of MTP layers, even an image encoder's.
        patterns = owner._keys_to_ignore_on_load_unexpected or ()
        owner._keys_to_ignore_on_load_unexpected = {each for each in patterns if "mtp" in each or "layers" in each}
        with quiet_loading():
            self.module = MtpModel.from_pretrained(model, device_map={"": self.weight.device}).eval()
        self.num_bytes = num_bytes(self.module.layers)

    def combine(self, states: Tensor) -> Tensor:
        """See `HeadModule.combine`."""
        return states

    def forward(self, hidden: Tensor, tokens: Tensor, positions: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """See `HeadModule.forward`."""
        output = self.forward_layer(0, hidden, tokens, positions, cache)
        return output, output

    def forward_layer(self, layer: int, hidden: Tensor, tokens: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """See `MtpLayers.forward_layer`."""
        own: Any = self.module
        output: Tensor = own.forward_layer(layer, hidden, positions, cache, input_ids=tokens)
        return output

    def guesses(self, output: Tensor, width: int) -> Guesses:
        """See `HeadModule.guesses`."""
        if self.find_guesses is not None:
            return self.find_guesses(output, width)
        return guesses_of(linear(output, self.weight), width)[0]

    def new_cache(self) -> Cache:
        """See `HeadModule.new_cache`."""
        cache = MtpCache(config=self.module.config)
        cache.activate_past_recording()
        return cache


class Eagle3Module:
    """An EAGLE-3 head in the format of speculators (Li et al. 2025, "EAGLE-3", section 3.1).

    Args:
        model: The model that decodes.
        config: The head's configuration.
        weights: The head's weights by name.

    Raises:
        ValueError: The head is for another model, or of a kind that is not supported.
    """

    name = "EAGLE-3 head"

    def __init__(self, model: PreTrainedModel, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
        text = model.config.get_text_config(decoder=True)
        given = config["transformer_layer_config"]
        self.config = AutoConfig.for_model(**given)
        if self.config.num_hidden_layers != 1 or config.get("norm_before_fc"):
            raise ValueError("Only EAGLE-3 heads of one layer, without norm_before_fc, are supported.")
        fitting = (self.config.hidden_size, EAGLE_LAYERS * text.hidden_size)
        if tuple(weights["fc.weight"].shape) != fitting or given["vocab_size"] != text.vocab_size:
            raise ValueError(
                f"The head reads hidden states of {weights['fc.weight'].shape[1] // EAGLE_LAYERS} values and a "
                f"vocabulary of {given['vocab_size']} tokens, and the model has {text.hidden_size} values and "
                f"{text.vocab_size} tokens: it was trained for another model."
            )
        count = text.num_hidden_layers
        self.layers = tuple(config.get("eagle_aux_hidden_state_layer_ids") or (2, count // 2, count - 3))[:EAGLE_LAYERS]
        if not all(0 <= layer <= count for layer in self.layers):
            raise ValueError(f"The head reads the layers {self.layers}, and the model has {count} layers.")
        place: Any = {"device": output_weight(model).device, "dtype": model.dtype}
        self.is_normed_first = bool(config.get("norm_before_residual"))
        embeddings: Any = model.get_input_embeddings()
        shared = [output_weight(model), embeddings.weight.detach()]
        self.weight = _shared(shared[0], weights["lm_head.weight"]).to(**place)
        self._embeddings = _shared(shared[1], weights.get("embed_tokens.weight")).to(**place)
        self.fc, self._body = weights["fc.weight"].to(**place), self._build(weights).to(**place)
        self.tokens = _target_tokens(weights, text.vocab_size, place["device"])
        pairs = zip((self.weight, self._embeddings), shared, strict=True)
        own = [self.fc, *(mine for mine, other in pairs if mine.data_ptr() != other.data_ptr())]
        self.num_bytes = num_bytes(self._body) + sum(each.nbytes for each in own)

    def combine(self, states: Tensor) -> Tensor:
        """See `HeadModule.combine`."""
        return linear(states, self.fc)

    def forward(self, hidden: Tensor, tokens: Tensor, positions: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """See `HeadModule.forward`."""
        body, layer = self._body, self._body.layers[0]
        embedded = layer.input_layernorm(embedding(tokens, self._embeddings))
        normed = layer.hidden_norm(hidden)
        residual = normed if self.is_normed_first else hidden
        attended, _ = layer.self_attn(
            torch.cat([embedded, normed], dim=-1),
            position_embeddings=body.rotary_emb(hidden, position_ids=positions),
            attention_mask=create_causal_mask(self.config, hidden, None, cache, positions),
            past_key_values=cache,
        )
        hidden = residual + attended
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return hidden, body.norm(hidden)

    def guesses(self, output: Tensor, width: int) -> Guesses:
        """See `HeadModule.guesses`. The LM head may have a reduced vocabulary."""
        return guesses_of(linear(output, self.weight), width, self.tokens)[0]

    def new_cache(self) -> Cache:
        """See `HeadModule.new_cache`."""
        return DynamicCache(config=self.config)

    def _build(self, weights: dict[str, Tensor]) -> Any:
        """Build a one-layer model whose attention reads embeddings and hidden states."""
        own = AutoConfig.for_model(
            **self.config.to_dict()
            | dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
            | {"vocab_size": 1}
        )
        body: Any = AutoModel.from_config(own)
        self.config = body.config
        layer, size = body.layers[0], own.hidden_size
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(layer.self_attn, name)
            setattr(layer.self_attn, name, Linear(2 * size, old.out_features, bias=old.bias is not None))
        layer.hidden_norm = type(layer.input_layernorm)(size, eps=own.rms_norm_eps)
        del body.embed_tokens
        names = body.state_dict().keys()
        if missing := sorted(names - weights.keys()):
            raise ValueError(f"The head has no weights {', '.join(missing)}.")
        body.load_state_dict({name: weights[name] for name in names})
        return body.eval()


def load_head(model: PreTrainedModel, source: str | Path | None) -> tuple[DraftHead | None, str]:
    """Load the draft head of a model.

    Args:
        source: "auto": the MTP layers of the model's own checkpoint, if it has any. None: no head.
            Otherwise a folder, or a name on the hub, of an EAGLE-3 head in the format of
            speculators, a Gemma 4 assistant or a DFlash model.

    Returns:
        The head, or None and the reason why there is none.

    Raises:
        ValueError: The head in ``source`` is for another model, or of a kind that is not supported.
        OSError: There is no such folder or name, or it lacks a file.
    """
    if source is None:
        return None, "none was requested"
    if source == AUTO:
        return _load_mtp(model)
    name = str(source)
    config = json.loads(Path(str(cached_file(name, "config.json"))).read_text(encoding="utf-8"))
    try:
        if config.get("model_type") in GEMMA4_TYPES:
            return Gemma4Head(model, name), ""
        if is_dflash(config):
            return DFlashHead(model, name, config), ""
        if config.get("speculators_model_type") == "eagle3":
            weights = load_file(str(cached_file(name, "model.safetensors")))
            return TorchHead(Eagle3Module(model, config, weights)), ""
    except (ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"head is {name!r}, which cannot be used. {' '.join(str(error).split())[:400]}") from error
    kind = config.get("speculators_model_type") or config.get("model_type")
    raise ValueError(
        f"head is {name!r}, which is of the type {kind!r}; give a folder or a name of an EAGLE-3 head in the format of "
        "speculators ('eagle3'), of a Gemma 4 assistant or of a DFlash model, or 'auto' for the checkpoint's own MTP "
        "layers."
    )


def _load_mtp(model: PreTrainedModel) -> tuple[DraftHead | None, str]:
    text: Any = model.config.get_text_config(decoder=True)
    count = next((count for name in MTP_COUNTS if (count := getattr(text, name, None))), 0)
    if not count:
        return None, "it has no MTP layer"
    text.num_mtp_layers = count
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(text, name, None) is not None and getattr(text, f"mtp_{name}", None) is None:
            kind = "full_attention" if name == "layer_types" else getattr(text, name)[-1]
            setattr(text, f"mtp_{name}", [kind] * count)
    try:
        module = MtpModule(model, count)
        head = TorchHead(module) if count == 1 else TorchHead(module, MtpLayersSession, count)
        session, states = head.session(lambda: None), (module.weight.new_zeros((2, module.weight.shape[1])),)
        for start in (0, 2):
            session.read([HiddenStates(start, states)], (0, 0), 1)
            session.guess(0, 1)
    # For example a checkpoint without the layers' weights, or an architecture that transformers guesses wrong.
    except Exception as error:  # noqa: BLE001
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return None, f"its MTP layers could not be loaded ({reason})"
    return head, ""


def _shared(shared: Tensor, own: Tensor | None) -> Tensor:
    """Return the head's weights ``own``; if they are missing or equal ``shared``, return ``shared`` to save memory."""
    if own is None or (own.shape == shared.shape and torch.equal(own.to(shared), shared)):
        return shared
    return own


def _target_tokens(weights: dict[str, Tensor], vocab_size: int, device: torch.device) -> Tensor | None:
    """Return the model's token id for each token id of the head; None if both use the same ids."""
    offsets = weights.get("d2t")
    if offsets is None:
        return None
    tokens = torch.arange(len(offsets)) + offsets
    if len(tokens) != len(weights["lm_head.weight"]) or not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise ValueError(f"Its table d2t has tokens outside of the model's vocabulary of {vocab_size}.")
    return tokens.to(device)
