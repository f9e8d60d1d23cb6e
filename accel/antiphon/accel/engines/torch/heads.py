"""Draft heads on torch: the MTP layer of a checkpoint, and EAGLE-3 heads in the format of speculators.

The heads use the model's embeddings. MTP layers also use the model's LM head.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import embedding, linear
from transformers import AutoConfig, AutoModel, Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import MtpModel
from transformers.utils.hub import cached_file

from antiphon.accel.drafting.draft import Tokens
from antiphon.accel.drafting.drafters.head import Guesses, HeadStats, HiddenStates
from antiphon.accel.engines.torch.argmax import top_k
from antiphon.accel.quiet_loading import quiet_loading

AUTO = "auto"
"""The head in the checkpoint itself, if there is one."""

EAGLE_LAYERS = 3
"""Number of the model's layers whose hidden states an EAGLE-3 head reads."""


class HeadModule(Protocol):
    """A layer with a cache. It maps hidden states and the next tokens to the next hidden states."""

    name: str
    layers: tuple[int, ...]
    weight: Tensor
    """Weights of the LM head, shape (vocab, hidden). Inputs are moved to their device and dtype."""

    tokens: Tensor | None
    """Token id of each row of ``weight``, shape (vocab,); None: the index of the row."""

    def combine(self, states: Tensor) -> Tensor:
        """Map hidden states (1, tokens, layers * hidden) to layer input (1, tokens, hidden)."""

    def forward(self, hidden: Tensor, tokens: Tensor, positions: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """Return the input of the next pass and the input of the LM head, each (1, tokens, hidden).

        Args:
            hidden: Result of `combine`, or the last pass's first result; (1, tokens, hidden).
            tokens: The token after each hidden state, shape (1, tokens).
            positions: Positions of ``tokens``, shape (1, tokens).
        """

    def new_cache(self) -> Cache:
        """Return an empty cache."""


class TorchHead:
    """A `DraftHead` of one layer on torch.

    Args:
        module: The layer.
    """

    def __init__(self, module: HeadModule) -> None:
        self.module = module
        self.name, self.layers = module.name, module.layers
        self.stats = HeadStats()

    def session(self) -> TorchHeadSession:
        """Return the session of a new text."""
        return TorchHeadSession(self.module)


class TorchHeadSession:
    """The `HeadSession` of a `TorchHead`: its cache has one entry for each token that it has read or guessed."""

    def __init__(self, module: HeadModule) -> None:
        self._module = module
        self._cache = module.new_cache()
        self._guessed = self._position = 0
        self._hidden = module.weight  # of the last token, (1, 1, hidden), after the first pass

    def read(self, states: Sequence[HiddenStates], tokens: Tokens, width: int) -> Guesses:
        """See `HeadSession.read`."""
        weight = self._module.weight
        parts = [torch.cat([torch.as_tensor(each).to(weight) for each in part.layers], dim=-1) for part in states]
        self._cache.crop(-self._guessed)
        self._guessed, self._position = 0, states[0].start
        return self._pass(torch.cat(parts)[None], tokens, width, is_read=True)

    def guess(self, token: int, width: int) -> Guesses:
        """See `HeadSession.guess`."""
        self._guessed += 1
        return self._pass(self._hidden, (token,), width)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _pass(self, hidden: Tensor, tokens: Tokens, width: int, *, is_read: bool = False) -> Guesses:
        module = self._module
        device = module.weight.device
        positions = torch.arange(self._position + 1, self._position + 1 + len(tokens), device=device)[None]
        self._position += len(tokens)
        with torch.autocast(device.type, enabled=False):
            hidden = module.combine(hidden) if is_read else hidden
            hidden, output = module.forward(hidden, torch.tensor([tokens], device=device), positions, self._cache)
            logits = linear(output[:, -1], module.weight)
        self._hidden = hidden[:, -1:]
        rows, chances = top_k(logits, min(width, logits.shape[1]))
        found = rows[0] if module.tokens is None else module.tokens[rows[0]]
        return list(zip(found.tolist(), chances[0].tolist(), strict=True))


class MtpModule:
    """The MTP layer of a model's own checkpoint. Its output is the input for the next token.

    Args:
        model: The model; its configuration declares one MTP layer.
    """

    name = "MTP layer"
    layers: tuple[int, ...] = (-1,)
    tokens: Tensor | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        self.weight = _output_weight(model)
        with quiet_loading():
            self.module = MtpModel.from_pretrained(model, device_map={"": self.weight.device}).eval()

    def combine(self, states: Tensor) -> Tensor:
        """See `HeadModule.combine`."""
        return states

    def forward(self, hidden: Tensor, tokens: Tensor, positions: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """See `HeadModule.forward`."""
        own: Any = self.module
        output: Tensor = own.forward_layer(0, hidden, positions, cache, input_ids=tokens)
        return output, output

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
        place: Any = {"device": _output_weight(model).device, "dtype": model.dtype}
        self.is_normed_first = bool(config.get("norm_before_residual"))
        self.weight, self.fc = weights["lm_head.weight"].to(**place), weights["fc.weight"].to(**place)
        self.tokens = _target_tokens(weights, text.vocab_size, place["device"])
        self._embeddings = _shared_embeddings(model, weights.get("embed_tokens.weight")).to(**place)
        self._body = self._build(weights).to(**place)

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


def load_head(model: PreTrainedModel, source: str | Path | None) -> tuple[TorchHead | None, str]:
    """Load the draft head of a model.

    Args:
        source: None: no head. "auto": the MTP layer of the model's own checkpoint, if any.
            Otherwise the folder or hub name of an EAGLE-3 head in the format of speculators.

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
    from safetensors.torch import load_file

    config = json.loads(Path(str(cached_file(str(source), "config.json"))).read_text(encoding="utf-8"))
    kind = config.get("speculators_model_type")
    if kind != "eagle3":
        raise ValueError(
            f"head is {str(source)!r}, whose speculators_model_type is {kind!r}; give an EAGLE-3 head in the format of "
            "speculators ('eagle3'), or 'auto' for the checkpoint's own MTP layer."
        )
    weights = load_file(str(cached_file(str(source), "model.safetensors")))
    try:
        return TorchHead(Eagle3Module(model, config, weights)), ""
    except (ValueError, KeyError) as error:
        raise ValueError(f"head is {str(source)!r}, which cannot be used. {error}") from error


def _load_mtp(model: PreTrainedModel) -> tuple[TorchHead | None, str]:
    text: Any = model.config.get_text_config(decoder=True)
    # Transformers does not know the field's name in Qwen's configurations, `mtp_num_hidden_layers`.
    count = getattr(text, "num_mtp_layers", None) or getattr(text, "mtp_num_hidden_layers", None) or 0
    if count != 1:
        return None, f"the checkpoint has {count} MTP layers, and one is supported" if count else "it has no MTP layer"
    text.num_mtp_layers = 1
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(text, name, None) is not None and getattr(text, f"mtp_{name}", None) is None:
            setattr(text, f"mtp_{name}", ["full_attention" if name == "layer_types" else getattr(text, name)[-1]])
    try:
        return TorchHead(MtpModule(model)), ""
    except (OSError, RuntimeError, ValueError) as error:  # for example a checkpoint without the layer's weights
        return None, f"the MTP layer could not be loaded: {' '.join(str(error).split())[:200]}"


def _output_weight(model: PreTrainedModel) -> Tensor:
    head: Any = model.get_output_embeddings()
    weight: Tensor = head.weight
    return weight.detach()


def _shared_embeddings(model: PreTrainedModel, own: Tensor | None) -> Tensor:
    """Return the head's embeddings; the model's own if these are equal or the head has none."""
    inputs: Any = model.get_input_embeddings()
    shared: Tensor = inputs.weight.detach()
    if own is None or (own.shape == shared.shape and torch.equal(own.to(shared), shared)):
        return shared
    return own


def _target_tokens(weights: dict[str, Tensor], vocab_size: int, device: torch.device) -> Tensor | None:
    """Return the model's token id for each token id of the head; None if all are the same."""
    offsets = weights.get("d2t")
    if offsets is None:
        return None
    tokens = torch.arange(len(offsets)) + offsets
    if len(tokens) != len(weights["lm_head.weight"]) or not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise ValueError(f"Its table d2t has tokens outside of the model's vocabulary of {vocab_size}.")
    return tokens.to(device)
