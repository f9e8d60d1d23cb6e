"""Draft heads that transformers loads as separate models: Gemma 4 assistants and DFlash models.

Both kinds use the embeddings of the model that decodes; DFlash models also use its LM head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import embedding, linear
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from antiphon.accel.drafting.draft import Tokens
from antiphon.accel.drafting.drafters.head import DraftHead, Guesses, HeadStats, HiddenStates
from antiphon.accel.engines.torch.argmax import top_k
from antiphon.accel.quiet_loading import quiet_loading

GEMMA4_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
"""Model types of assistants of Gemma 4."""

DFLASH_TYPE, DFLASH_CLASS = "muse_glimmer_assistant", "DFlashDraftModel"
"""The model type of DFlash in transformers, and the name of the class that its authors' checkpoints need.

Both compute the same ("DFlash: Block Diffusion for Flash Speculative Decoding", arXiv 2602.06036). Only the names of
two weights and the place of some settings differ.
"""

DFLASH_SETTINGS = ("block_size", "mask_token_id", "target_layer_ids")
"""Settings of DFlash in the authors' configuration files."""

DFLASH_NAMES = {r"^fc\.": "encoder.fc.", r"^hidden_norm\.": "encoder.output_norm_enc."}
"""Names of weights in the authors' checkpoints, as regular expressions, and their names in transformers."""


class Gemma4Head(DraftHead):
    """A Gemma 4 assistant: a small model that attends to the model's keys and values, at the last token's position.

    It needs no cache and no pass over the prompt. Its input at each depth is the embedding of the
    last token and a hidden state: first the model's last hidden state, then the assistant's own.

    Args:
        model: The model that decodes.
        source: Folder of the assistant, or its name on the hub.

    Raises:
        ValueError: The assistant is for another model, or its checkpoint is not complete.
    """

    name, layers, reads_cache = "Gemma 4 assistant", (-1,), True

    def __init__(self, model: PreTrainedModel, source: str) -> None:
        self.config: Any = model.config.get_text_config(decoder=True)
        config: Any = AutoConfig.from_pretrained(source)
        own = config.get_text_config()
        expected, given = _key_shapes(self.config), _key_shapes(own)
        sizes = (config.backbone_hidden_size, own.vocab_size)
        is_fitting = sizes == (self.config.hidden_size, self.config.vocab_size)
        if not is_fitting or any(expected.get(kind) != shape for kind, shape in given.items()):
            raise ValueError(
                f"It reads hidden states of {sizes[0]} values, a vocabulary of {sizes[1]} tokens and keys of the "
                f"shapes {given}, and the model has {self.config.hidden_size} values, {self.config.vocab_size} tokens "
                f"and {expected}: it was trained for another model."
            )
        self.embeddings: Any = model.get_input_embeddings()
        with layers_without_keys(type(own)):
            self.assistant = load_whole(AutoModelForCausalLM, model, source)
        self.stats, self.num_bytes = HeadStats(), num_bytes(self.assistant)

    def session(self, cache: Callable[[], Any]) -> Gemma4Session:
        """Return the session of a new text."""
        return Gemma4Session(self, cache)


class Gemma4Session:
    """The `HeadSession` of a `Gemma4Head`."""

    def __init__(self, head: Gemma4Head, cache: Callable[[], Any]) -> None:
        self._head, self._cache = head, cache
        self._hidden = head.embeddings.weight[:0]
        self._position = 0
        self._states: dict[str, tuple[Tensor, Tensor]] = {}

    def read(self, states: Sequence[HiddenStates], tokens: Tokens, width: int) -> Guesses:
        """See `HeadSession.read`. Only the last hidden state is needed."""
        last = states[-1]
        self._position = last.start + len(last.layers[0])
        self._hidden = stacked([HiddenStates(0, (last.layers[0][-1:],))], self._head.assistant.lm_head.weight)
        # The last layer of each kind that stores keys; both kinds hold the tokens before the last one.
        self._states = {
            kind: (layer.keys[..., : self._position, :], layer.values[..., : self._position, :])
            for kind, layer in zip(self._head.config.layer_types, self._cache().layers, strict=False)
            if getattr(layer, "keys", None) is not None
        }
        return self.guess(tokens[-1], width)

    def guess(self, token: int, width: int) -> Guesses:
        """See `HeadSession.guess`."""
        head, hidden = self._head, self._hidden
        with plain_pass(hidden.device):
            embedded = head.embeddings(torch.tensor([[token]], device=head.embeddings.weight.device)).to(hidden)
            output = head.assistant(
                inputs_embeds=torch.cat([embedded, hidden], dim=-1),
                position_ids=torch.tensor([[self._position]], device=hidden.device),
                shared_kv_states=self._states,
            )
        self._hidden = output.last_hidden_state
        return guesses_of(output.logits[:, -1], width)[0]


class DFlashHead(DraftHead):
    """A DFlash model, which guesses a block of tokens in one pass ("DFlash", arXiv 2602.06036).

    Its queries are the last token and mask tokens after it. They attend to each other, and to the
    hidden states of all earlier tokens from some of the model's layers.

    Args:
        model: The model that decodes.
        source: Folder of the DFlash model, or its name on the hub.
        config: Its configuration file.

    Raises:
        ValueError: The DFlash model was trained for another model, or has another architecture.
    """

    name, is_parallel = "DFlash model", True

    def __init__(self, model: PreTrainedModel, source: str, config: Mapping[str, Any]) -> None:
        text: Any = model.config.get_text_config(decoder=True)
        own: Any = _dflash_config(config)
        is_in_range = all(0 <= layer < text.num_hidden_layers for layer in own.target_layer_ids)
        if own.hidden_size != text.hidden_size or not is_in_range or not 0 <= own.mask_token_id < text.vocab_size:
            raise ValueError(
                f"It reads hidden states of {own.hidden_size} values of the layers {own.target_layer_ids}, and uses "
                f"the mask token {own.mask_token_id}; the model has {text.hidden_size} values, "
                f"{text.num_hidden_layers} layers and {text.vocab_size} tokens: it was trained for another model."
            )
        self.layers = tuple(layer + 1 for layer in own.target_layer_ids)  # 0 are the embeddings
        self.mask_token, self.block_size = own.mask_token_id, own.block_size
        self.max_depth = self.block_size - 1
        self.embeddings: Any = model.get_input_embeddings()
        self.weight = output_weight(model)
        names = None if config.get("model_type") == DFLASH_TYPE else DFLASH_NAMES
        self.module = load_whole(transformers.MuseGlimmerAssistantModel, model, source, config=own, key_mapping=names)
        self.stats, self.num_bytes = HeadStats(), num_bytes(self.module)

    def embed_block(self, token: int) -> Tensor:
        """Return the embeddings of a token and of mask tokens, shape (1, block_size, hidden).

        Some models apply a norm to their embeddings; this method returns the embeddings without it.
        """
        block = [token, *[self.mask_token] * (self.block_size - 1)]
        tokens = torch.tensor([block], device=self.embeddings.weight.device)
        has_norm = hasattr(self.embeddings, "embed_norm")
        embedded: Tensor = embedding(tokens, self.embeddings.weight) if has_norm else self.embeddings(tokens)
        return embedded.to(self.weight)

    def session(self, cache: Callable[[], Any]) -> DFlashSession:
        """Return the session of a new text. ``cache`` is ignored."""
        return DFlashSession(self)


class DFlashSession:
    """The `HeadSession` of a `DFlashHead`: its cache has one entry for each token that it has read."""

    def __init__(self, head: DFlashHead) -> None:
        from transformers.cache_utils import DFlashCache

        self._head = head
        self._cache = DFlashCache(config=head.module.config)
        self._cache.activate_past_recording()
        self._guesses: list[Guesses] = []

    def read(self, states: Sequence[HiddenStates], tokens: Tokens, width: int) -> Guesses:
        """See `HeadSession.read`."""
        head, cache, size, start = self._head, self._cache, self._head.block_size, states[0].start
        hidden = stacked(states, head.weight)
        if cache.get_seq_length():  # forget the last block
            cache.crop(-size)
        cache.set_previous_accepted_tokens(len(tokens))
        with plain_pass(hidden.device):
            output = head.module(
                noise_embeds=head.embed_block(tokens[-1]),
                context_hidden_states=hidden,
                position_ids=torch.arange(start, start + len(tokens) + size, device=hidden.device)[None],
                past_key_values=cache,
            )
            logits = linear(output.last_hidden_state[0, 1:], head.weight)
        first, *self._guesses = guesses_of(logits, width)
        return first

    def guess(self, token: int, width: int) -> Guesses:
        """See `HeadSession.guess`; all guesses were computed by ``read``, independently of each other."""
        return self._guesses.pop(0)


def is_dflash(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration file belongs to a DFlash model."""
    return config.get("model_type") == DFLASH_TYPE or DFLASH_CLASS in (config.get("architectures") or ())


def _dflash_config(config: Mapping[str, Any]) -> PreTrainedConfig:
    """Convert the configuration file of a DFlash model to a configuration for transformers."""
    given = dict(config)
    if given.pop("model_type") != DFLASH_TYPE:
        own = given.pop("dflash_config", {})
        others = [name for name, value in own.items() if value and name not in DFLASH_SETTINGS]
        others += [name for name in ("attention_bias", "is_causal") if config.get(name)]
        if others:
            raise ValueError(f"Its settings {', '.join(others)} are not supported.")
        given |= own
        if missing := [name for name in DFLASH_SETTINGS if name not in given]:
            raise ValueError(f"Its configuration has no {', '.join(missing)}.")
        given["layer_types"] = given.get("layer_types") or ["full_attention"] * given["num_hidden_layers"]
    return AutoConfig.for_model(DFLASH_TYPE, **{name: value for name, value in given.items() if value is not None})


def load_whole(loader: Any, model: PreTrainedModel, source: str, **options: Any) -> Any:
    """Load a draft model in the precision and onto the device of the model that decodes.

    Raises:
        ValueError: The checkpoint lacks weights of the model, or has additional weights.
    """
    with quiet_loading():
        loaded, report = loader.from_pretrained(
            source, dtype=model.dtype, device_map={"": output_weight(model).device}, output_loading_info=True, **options
        )
    if wrong := sorted([*report["missing_keys"], *report["unexpected_keys"]]):
        raise ValueError(f"These weights are missing, or are of another architecture: {', '.join(wrong)}.")
    return loaded.eval()


@contextmanager
def layers_without_keys(config_class: Any) -> Iterator[None]:
    """Let transformers build models of Gemma 4 in which no layer computes keys, as in all assistants.

    Without this, transformers 5.23 raises an error for such models. Models that are loaded at the
    same time are not affected.
    """
    given = config_class.kv_sharing_modes

    def modes(config: Any) -> Any:
        has_none = config.num_kv_shared_layers == config.num_hidden_layers
        return ["reuse"] * config.num_hidden_layers if has_none else given.fget(config)

    with quiet_loading():  # one thread at a time
        config_class.kv_sharing_modes = property(modes)
        try:
            yield
        finally:
            config_class.kv_sharing_modes = given


def _key_shapes(config: Any) -> dict[str, tuple[int, int]]:
    """Return, for each kind of layer, the number of key heads and the size of a head."""
    return {
        kind: (layer.num_key_value_heads, layer.head_dim)
        for kind, layer in zip(
            getattr(config, "layer_types", None) or (), getattr(config, "per_layer_config", None) or (), strict=False
        )
    }


def guesses_of(logits: Tensor, width: int, tokens: Tensor | None = None) -> list[Guesses]:
    """Return the guesses of each row of logits.

    Args:
        logits: Shape (rows, vocab).
        width: Number of guesses.
        tokens: Token of each column of the logits, shape (vocab,); None: the column's index.
    """
    columns, chances = top_k(logits, min(width, logits.shape[1]))
    found = columns if tokens is None else tokens[columns]
    return [list(zip(own, given, strict=True)) for own, given in zip(found.tolist(), chances.tolist(), strict=True)]


def stacked(states: Sequence[HiddenStates], weight: Tensor) -> Tensor:
    """Return hidden states as one tensor, (1, tokens, layers * hidden).

    The result has the precision and the device of ``weight``.
    """
    parts = [torch.cat([torch.as_tensor(each).to(weight) for each in part.layers], dim=-1) for part in states]
    return torch.cat(parts)[None]


@contextmanager
def plain_pass(device: torch.device) -> Iterator[None]:
    """Run a pass of a head without gradients and autocast, and without making inference tensors."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def num_bytes(module: nn.Module) -> int:
    """Return the size of a module's weights in bytes."""
    return sum({each.data_ptr(): each.nbytes for each in module.state_dict().values()}.values())


def output_weight(model: PreTrainedModel) -> Tensor:
    """Return the weights of a model's LM head, shape (vocab, hidden)."""
    head: Any = model.get_output_embeddings()
    weight: Tensor = head.weight
    return weight.detach()
