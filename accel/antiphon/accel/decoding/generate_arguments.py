"""Check whether this decoder supports given arguments of transformers' `generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

Reference = str | Sequence[int]
"""A text that drafts may be copied from, or its token ids."""

DRAFTS = "its drafts come from drafter= and references="
OTHER_DRAFTS = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp", "speculation_type")
OTHER_MODES = ("constraints", "force_words_ids", "dola_layers")
NOT_PASSED_ON = {
    "assistant_model": DRAFTS,
    "assistant_tokenizer": DRAFTS,
    "custom_generate": "pass the decoder itself as custom_generate to the model's own generate",
    "streamer": "pass it to generate of this module, or iterate over the steps",
    "synced_gpus": "decode in one process",
}
"""Arguments that `generate` does not pass on to a custom decoding function, and what to do instead."""

KNOWN = frozenset({"past_key_values", "cache_params", "attention_mask", "position_ids", "logits_to_keep", "use_cache"})


def reference_tokens(
    references: Sequence[Reference], tokenizer: PreTrainedTokenizerBase | None, vocab_size: int
) -> list[list[int]]:
    """Return the references as token ids, each encoded alone and without special tokens.

    Args:
        tokenizer: Needed for texts.

    Raises:
        TypeError: A reference is neither a text nor a list of token ids.
        ValueError: A reference is a text without a tokenizer, or a token id is not in the
            vocabulary.
    """
    if isinstance(references, str):
        raise TypeError(f"references is the text {references[:40]!r}; pass a list of texts.")
    encoded: list[list[int]] = []
    for index, reference in enumerate(references):
        if isinstance(reference, str):
            if tokenizer is None:
                raise ValueError(f"Reference {index} is a text; pass tokenizer= too, or its token ids.")
            encoded.append(tokenizer.encode(reference, add_special_tokens=False))
        elif isinstance(reference, Sequence) and all(isinstance(token, int) for token in reference):
            encoded.append([*map(int, reference)])
        else:
            kind = type(reference).__name__
            raise TypeError(f"Reference {index} is a {kind}; a reference is a text or a list of token ids.")
        if max(encoded[-1], default=0) >= vocab_size:
            raise ValueError(
                f"Reference {index} has token id {max(encoded[-1])} and the model's vocabulary ends at {vocab_size}; "
                "encode it with the model's own tokenizer."
            )
    return encoded


def check_supported(
    model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, arguments: Mapping[str, Any]
) -> None:
    """Raise an error if an option is not supported. Called before anything is decoded.

    Args:
        input_ids: Token ids of the prompts, shape (batch, length).
        arguments: The arguments that `generate` would pass to the model: cache, attention mask and others.

    Raises:
        ValueError: An option is not supported; the message names the first such option.
    """
    from transformers import DynamicCache

    from antiphon.accel.engines.torch.cache_kinds import cached_length
    from antiphon.accel.engines.torch.sequence import cache_of

    batch, length = input_ids.shape
    cache = cache_of(model, dict(arguments))
    kind = type(cache).__name__
    contrastive = bool(config.penalty_alpha) and not config.do_sample
    reasons = {
        f"num_beams={config.num_beams}": (config.num_beams or 1) > 1,
        f"num_beam_groups={config.num_beam_groups}": (config.num_beam_groups or 1) > 1,
        "use_cache=False": config.use_cache is False or arguments.get("use_cache") is False,
        "inputs_embeds": arguments.get("inputs_embeds") is not None or length == 0,
        f"a {kind} for {batch} sequences": batch > 1 and cache is not None and type(cache) is not DynamicCache,
        f"a cache that holds tokens for {batch} sequences": batch > 1
        and cache is not None
        and cached_length(cache) > 0,
        "output_attentions": bool(config.output_attentions),
        "output_hidden_states": bool(config.output_hidden_states),
        f"penalty_alpha={config.penalty_alpha} without sampling (contrastive search)": contrastive,
    }
    reasons |= {name: getattr(config, name, None) is not None for name in OTHER_MODES}
    reasons |= {name: getattr(config, name, None) not in (None, False) for name in OTHER_DRAFTS}
    given = {name: value for name, value in arguments.items() if name not in KNOWN and value is not None}
    empty = isinstance(given.get("mm_encoder_outputs"), dict) and not given["mm_encoder_outputs"]  # no images, no sound
    reasons |= {name: not (empty and name == "mm_encoder_outputs") for name in given}
    _refuse_first(reasons)
    _refuse_first({"position_ids of your own": not _has_default_positions(input_ids, arguments)})
    if cache is not None and cached_length(cache) >= length:
        raise ValueError(
            f"The cache already holds {cached_length(cache)} tokens and input_ids has {length}; "
            "pass the whole text, with at least one token that the cache does not hold."
        )


def check_passed_on(model: PreTrainedModel, arguments: Mapping[str, Any]) -> None:
    """Raise an error for arguments that `generate` does not pass on to a custom decoder."""
    reasons = {name: arguments.get(name) not in (None, False) for name in NOT_PASSED_ON}
    reasons["token_healing"] = bool(option(model, arguments, "token_healing"))
    reasons["cache_implementation='paged'"] = option(model, arguments, "cache_implementation") == "paged"
    _refuse_first(reasons)


def _refuse_first(reasons: Mapping[str, bool]) -> None:
    for name, given in reasons.items():
        if given:
            remedy = DRAFTS if name in OTHER_DRAFTS else "decode prompts of input_ids, greedy or sampled"
            raise ValueError(f"This decoder does not offer {name}; {NOT_PASSED_ON.get(name, remedy)}.")


def option(model: PreTrainedModel, arguments: Mapping[str, Any], name: str) -> Any:
    """Return an option's value in `generate`: from the arguments, else the given config, else the model's config."""
    if name in arguments:
        return arguments[name]
    configs = (arguments.get("generation_config"), getattr(model, "generation_config", None))
    return next((value for value in (getattr(config, name, None) for config in configs) if value is not None), None)


def _has_default_positions(input_ids: Tensor, arguments: Mapping[str, Any]) -> bool:
    """Return whether positions are the default: 0, 1, 2, ... from the first visible token."""
    import torch

    positions = arguments.get("position_ids")
    batch, length = input_ids.shape
    if positions is None or positions.shape[-1] < length:
        return positions is None
    masks = arguments.get("attention_mask")
    for row, own in enumerate(positions.expand(batch, -1)):
        visible = own[0 if masks is None else left_padding(masks[row : row + 1]) : length]
        if not bool((visible == torch.arange(len(visible), device=visible.device)).all()):
            return False
    return True


def left_padding(attention_mask: Tensor | None) -> int:
    """Return the number of left padding tokens before the prompt."""
    if attention_mask is None:
        return 0
    hidden = int((attention_mask[0] == 0).sum())
    if bool((attention_mask[0, :hidden] != 0).any()):
        raise ValueError(
            "attention_mask hides tokens after the first visible one; only left padding can be hidden. "
            "If they are text (transformers takes pad tokens in a prompt for padding), pass a mask of ones."
        )
    return hidden
