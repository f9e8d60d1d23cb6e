"""The request that transformers prepares from `generate`'s arguments: prompt, processors, criteria, cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Cache,
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    StopStringCriteria,
)

from antiphon.accel.engines.torch.sequence import CACHE_ARGUMENTS, cache_of, cached_length

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


@dataclass(frozen=True, slots=True)
class Request:
    """A request as `generate` prepares it.

    Attributes:
        model: The causal model.
        input_ids: Token ids of the prompts, shape (batch, length).
        processors: Logits processors, in the order of plain decoding.
        criteria: Stopping criteria.
        config: The generation settings.
        arguments: What `generate` would pass to the model: cache, attention mask and others.
        is_cache_given: Whether the caller passed a cache, which is then filled even if it is empty.
    """

    model: PreTrainedModel
    input_ids: Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    arguments: Mapping[str, Any]
    is_cache_given: bool = False

    @property
    def cache(self) -> Cache | None:
        """The cache that transformers prepared or the caller passed."""
        return cache_of(self.model, dict(self.arguments))

    @property
    def has_own_cache(self) -> bool:
        """Whether the engine has to use the caller's cache object: it holds tokens, or the caller wants it filled."""
        cache = self.cache
        return cache is not None and (
            self.is_cache_given or type(cache) is not DynamicCache or cached_length(cache) > 0
        )

    @property
    def padding(self) -> int:
        """Number of left padding tokens before the prompt."""
        return _padding(self.arguments.get("attention_mask"))


def prepare(
    model: PreTrainedModel,
    input_ids: Tensor | Sequence[int],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | Sequence[str] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    **arguments: Any,
) -> Request:
    """Return what `generate` prepares (config, processors, criteria, cache) before its decoding loop.

    Args:
        input_ids: Token ids of the prompts, shape (batch, length), or of one prompt as a list.
        tokenizer: Needed for ``stop_strings``.
        stop_strings: Texts after which generation stops.
        **arguments: Everything else that `generate` takes.

    Raises:
        ValueError: An option is not supported, or `generate` would drop or misread it; the message names it.
    """
    _check_passed_on(model, arguments)
    if not isinstance(input_ids, Tensor):
        input_ids = torch.tensor([list(input_ids)], device=model.device)
    criteria = StoppingCriteriaList(stopping_criteria or [])
    configured = _option(model, arguments, "stop_strings")
    if configured:  # handled here, because `generate` does not pass the tokenizer to custom decoding
        stop_strings, arguments["stop_strings"] = stop_strings or configured, None
    if stop_strings:
        if tokenizer is None:
            raise ValueError("stop_strings were given without a tokenizer; pass tokenizer= as well.")
        strings = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
        criteria.append(StopStringCriteria(tokenizer, strings))

    def capture(
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **prepared: Any,
    ) -> Request:
        return Request(model, input_ids, logits_processor, stopping_criteria, generation_config, prepared)

    generate: Any = model.generate  # the stubs of transformers leave it out of PreTrainedModel
    request: Request = generate(input_ids, stopping_criteria=criteria, custom_generate=capture, **arguments)
    check_supported(request)
    is_given = any(arguments.get(name) is not None for name in CACHE_ARGUMENTS)
    return replace(request, is_cache_given=is_given) if is_given else request


def reference_tokens(
    references: Sequence[Reference], tokenizer: PreTrainedTokenizerBase | None, vocab_size: int
) -> list[list[int]]:
    """Return the references as token ids, each encoded alone and without special tokens.

    Args:
        references: Texts or token ids.
        tokenizer: Needed for texts.

    Raises:
        TypeError: A reference is neither a text nor a list of token ids.
        ValueError: There is no tokenizer for a text, or a token id that the model does not have.
    """
    if isinstance(references, str):
        raise TypeError(f"references is the text {references[:40]!r}; pass a list of texts.")
    encoded: list[list[int]] = []
    for index, reference in enumerate(references):
        if not isinstance(reference, str):
            encoded.append(_ids(index, reference))
        elif tokenizer is None:
            raise ValueError(f"Reference {index} is a text; pass tokenizer= too, or its token ids.")
        else:
            encoded.append(tokenizer.encode(reference, add_special_tokens=False))
        if max(encoded[-1], default=0) >= vocab_size:
            raise ValueError(
                f"Reference {index} has token id {max(encoded[-1])} and the model's vocabulary ends at {vocab_size}; "
                "encode it with the model's own tokenizer."
            )
    return encoded


def _ids(index: int, reference: object) -> list[int]:
    if isinstance(reference, Sequence) and all(isinstance(token, int) for token in reference):
        return list(reference)
    raise TypeError(f"Reference {index} is a {type(reference).__name__}; a reference is a text or a list of token ids.")


def check_supported(request: Request) -> None:
    """Refuse a request that this decoder cannot decode, before anything is decoded.

    Raises:
        ValueError: An option is not supported; the message names the first one.
    """
    config, arguments = request.config, request.arguments
    batch, length = request.input_ids.shape
    cache = request.cache
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
    _refuse_first({"position_ids of your own": not _has_default_positions(request)})
    if cache is not None and cached_length(cache) >= length:
        raise ValueError(
            f"The cache already holds {cached_length(cache)} tokens and input_ids has {length}; "
            "pass the whole text, with at least one token that the cache does not hold."
        )


def _check_passed_on(model: PreTrainedModel, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that `generate` does not pass on."""
    reasons = {name: arguments.get(name) not in (None, False) for name in NOT_PASSED_ON}
    reasons["token_healing"] = bool(_option(model, arguments, "token_healing"))
    reasons["cache_implementation='paged'"] = _option(model, arguments, "cache_implementation") == "paged"
    _refuse_first(reasons)


def _refuse_first(reasons: Mapping[str, bool]) -> None:
    for name, given in reasons.items():
        if given:
            remedy = DRAFTS if name in OTHER_DRAFTS else "decode prompts of input_ids, greedy or sampled"
            raise ValueError(f"This decoder does not offer {name}; {NOT_PASSED_ON.get(name, remedy)}.")


def _option(model: PreTrainedModel, arguments: Mapping[str, Any], name: str) -> Any:
    """Return the value that `generate` would use for an option: the argument's, the given config's, or the model's."""
    if name in arguments:
        return arguments[name]
    configs = (arguments.get("generation_config"), getattr(model, "generation_config", None))
    return next((value for value in (getattr(config, name, None) for config in configs) if value is not None), None)


def _has_default_positions(request: Request) -> bool:
    """Return whether positions are 0, 1, 2, ... from the first visible token, as without ``position_ids``."""
    positions = request.arguments.get("position_ids")
    length = request.input_ids.shape[1]
    if positions is None or positions.shape[-1] < length:
        return positions is None
    masks = request.arguments.get("attention_mask")
    for row, own in enumerate(positions.expand(request.input_ids.shape[0], -1)):
        visible = own[0 if masks is None else _padding(masks[row : row + 1]) : length]
        if not bool((visible == torch.arange(len(visible), device=visible.device)).all()):
            return False
    return True


def _padding(attention_mask: Tensor | None) -> int:
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
