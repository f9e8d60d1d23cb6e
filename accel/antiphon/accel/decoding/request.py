"""What transformers makes of `generate`'s arguments: prompt, processors, criteria, cache. Decodes nothing."""

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

from antiphon.accel.engines.torch.sequence import CACHES, cache_of, held

Reference = str | Sequence[int]
"""A text that the answer may quote, or its token ids."""

DRAFTS = "its drafts come from drafter= and references="
OTHER_DRAFTS = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp", "speculation_type")
OTHER_MODES = ("constraints", "force_words_ids", "dola_layers")
UNHEARD = {
    "assistant_model": DRAFTS,
    "assistant_tokenizer": DRAFTS,
    "custom_generate": "pass the decoder itself as custom_generate to the model's own generate",
    "streamer": "pass it to generate of this module, or iterate over the steps",
    "synced_gpus": "decode in one process",
}
"""What `generate` takes for itself before a callable hears of it, and what to do instead."""

KNOWN = frozenset({"past_key_values", "cache_params", "attention_mask", "position_ids", "logits_to_keep", "use_cache"})


@dataclass(frozen=True, slots=True)
class Request:
    """What `generate` makes of its arguments, ready to be decoded.

    ``is_cache_given`` says that the caller has named a cache, which is to be filled even where it is empty.
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
        """The cache that was prepared, or given."""
        return cache_of(self.model, dict(self.arguments))

    @property
    def has_own_cache(self) -> bool:
        """Whether a certain cache is to be read or filled, and not any that an engine may have."""
        cache = self.cache
        return cache is not None and (self.is_cache_given or type(cache) is not DynamicCache or held(cache) > 0)

    @property
    def padding(self) -> int:
        """How many tokens of left padding the prompt begins with."""
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
    """Everything that `generate` prepares (config, processors, criteria, cache), without its decoding loop.

    Raises:
        ValueError: an option that this decoder does not offer, or that `generate` would swallow or misread, is named.
    """
    _refuse_unheard(model, arguments)
    if not isinstance(input_ids, Tensor):
        input_ids = torch.tensor([list(input_ids)], device=model.device)
    criteria = StoppingCriteriaList(stopping_criteria or [])
    configured = _asked(model, arguments, "stop_strings")
    if configured:  # `generate` would ask for the tokenizer that it does not hand on to callables
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
    refuse(request)
    is_given = any(arguments.get(name) is not None for name in CACHES)
    return replace(request, is_cache_given=is_given) if is_given else request


def reference_tokens(
    references: Sequence[Reference], tokenizer: PreTrainedTokenizerBase | None, vocabulary: int
) -> list[list[int]]:
    """References as token ids below ``vocabulary``, each encoded alone and without special tokens."""
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
        if max(encoded[-1], default=0) >= vocabulary:
            raise ValueError(
                f"Reference {index} has token id {max(encoded[-1])} and the model's vocabulary ends at {vocabulary}; "
                "encode it with the model's own tokenizer."
            )
    return encoded


def _ids(index: int, reference: object) -> list[int]:
    if isinstance(reference, Sequence) and all(isinstance(token, int) for token in reference):
        return list(reference)
    raise TypeError(f"Reference {index} is a {type(reference).__name__}; a reference is a text or a list of token ids.")


def refuse(request: Request) -> None:
    """Name the first option that this decoder does not offer, before anything is decoded."""
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
        f"a cache that holds tokens for {batch} sequences": batch > 1 and cache is not None and held(cache) > 0,
        "output_attentions": bool(config.output_attentions),
        "output_hidden_states": bool(config.output_hidden_states),
        f"penalty_alpha={config.penalty_alpha} without sampling (contrastive search)": contrastive,
    }
    reasons |= {name: getattr(config, name, None) is not None for name in OTHER_MODES}
    reasons |= {name: getattr(config, name, None) not in (None, False) for name in OTHER_DRAFTS}
    reasons |= {name: value is not None for name, value in arguments.items() if name not in KNOWN}
    _name_first(reasons)
    _name_first({"position_ids of your own": not _counts_up(request)})
    if cache is not None and held(cache) >= length:
        raise ValueError(
            f"The cache already holds {held(cache)} tokens and input_ids has {length}; "
            "pass the whole text, with at least one token that the cache does not hold."
        )


def _refuse_unheard(model: PreTrainedModel, arguments: Mapping[str, Any]) -> None:
    """Name what `generate` takes for itself before a callable hears of it."""
    reasons = {name: arguments.get(name) not in (None, False) for name in UNHEARD}
    reasons["token_healing"] = bool(_asked(model, arguments, "token_healing"))
    reasons["cache_implementation='paged'"] = _asked(model, arguments, "cache_implementation") == "paged"
    _name_first(reasons)


def _name_first(reasons: Mapping[str, bool]) -> None:
    for name, given in reasons.items():
        if given:
            remedy = DRAFTS if name in OTHER_DRAFTS else "decode prompts of input_ids, greedy or sampled"
            raise ValueError(f"This decoder does not offer {name}; {UNHEARD.get(name, remedy)}.")


def _asked(model: PreTrainedModel, arguments: Mapping[str, Any], name: str) -> Any:
    """An option as `generate` will see it: the argument, or that of the given configuration, or the model's own."""
    if name in arguments:
        return arguments[name]
    configs = (arguments.get("generation_config"), getattr(model, "generation_config", None))
    return next((value for value in (getattr(config, name, None) for config in configs) if value is not None), None)


def _counts_up(request: Request) -> bool:
    """Whether positions are what they are without being given: 0, 1, 2, ... from the first visible token."""
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
    """How many tokens of left padding the prompt begins with."""
    if attention_mask is None:
        return 0
    hidden = int((attention_mask[0] == 0).sum())
    if bool((attention_mask[0, :hidden] != 0).any()):
        raise ValueError(
            "attention_mask hides tokens after the first visible one; only left padding can be hidden. "
            "If they are text (transformers takes pad tokens in a prompt for padding), pass a mask of ones."
        )
    return hidden
