"""A request to a model of transformers, made from the arguments that `generate` prepares."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from antiphon.accel.decoding.drafter_choice import drafter_factory
from antiphon.accel.decoding.engine_request import EngineRequest
from antiphon.accel.decoding.generate_arguments import (
    Reference,
    check_passed_on,
    check_supported,
    left_padding,
    option,
    reference_tokens,
)
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.decoding.tokens import RequestOutput, Sampler, TokenHistory
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.drafting.drafters.head import Head
from antiphon.accel.engines.protocol import AnonymousTenant, ModelEngine, SequenceOptions
from antiphon.accel.engines.selection import select_engine
from antiphon.accel.engines.torch.bita_weights import bita_weights_of
from antiphon.accel.engines.torch.cache_kinds import cached_length
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.sequence import CACHE_ARGUMENTS, cache_of

Made = TypeVar("Made")


class ModelRequest(EngineRequest):
    """One request to a model. The engine's lock must be held while the request is created.

    The positional arguments are the arguments that transformers passes to a custom decoding
    function.

    Args:
        input_ids: Token ids of the prompt, shape (1, length).
        logits_processor: Logits processors, in the order of plain decoding.
        references: Texts, or token ids, that drafts may be copied from.
        tokenizer: Needed if references are texts.
        generator: Source of random numbers; None: torch's global one.
        options: How to decode; None: the defaults.
        tenant: Owner of the text. An engine with one KV cache for all requests reuses prefixes within a tenant; None:
            no reuse.
        recycling: True: the drafter has its own recycling table. A table: the drafter shares it with other requests,
            unless the drafter already has another table. False: no table.
        is_cache_given: Whether the caller passed a cache. The request fills this cache even if it
            is empty.
        **arguments: The arguments that `generate` would pass to the model: cache, attention mask and others.

    Raises:
        ValueError, TypeError: An option is not supported; a reference is neither a text nor token ids of the
            vocabulary; the model cannot be decoded reproducibly; or the drafter was trained for another model.
    """

    __slots__ = ("config", "history", "model")
    sampler: Sampler
    output: RequestOutput

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        *,
        references: Sequence[Reference] = (),
        tokenizer: PreTrainedTokenizerBase | None = None,
        generator: torch.Generator | None = None,
        options: DecodingOptions | None = None,
        tenant: Hashable = None,
        recycling: bool | RecyclingTable = True,
        is_cache_given: bool = False,
        **arguments: Any,
    ) -> None:
        check_supported(model, input_ids, generation_config, arguments)
        self.model, self.config, options = model, generation_config, options or DecodingOptions()
        cache, padding = cache_of(model, arguments), left_padding(arguments.get("attention_mask"))
        selected = select_engine(model, options.engine_choice).engine
        drafter = drafter_factory(options, selected, engine_of(model).head)()
        head = head_part(drafter) if options.max_draft_rows != 0 else None
        is_used = cache is not None and (is_cache_given or type(cache) is not DynamicCache or cached_length(cache) > 0)
        is_long = selected.max_length is not None and generation_config.max_length > selected.max_length
        needs_torch = bool(padding or is_used or is_long or bita_weights_of(drafter) is not None)
        engine = _engine_for(model, selected, options, needs_torch=needs_torch)
        head = None if head is not None and engine.missing_for_head(head.model) else head
        self.history = TokenHistory(input_ids)
        is_detailed = bool(generation_config.return_dict_in_generate)
        sampler = Sampler(
            self.history,
            logits_processor,
            sample=bool(generation_config.do_sample),
            generator=generator,
            keep_scores=is_detailed and bool(generation_config.output_scores),
            keep_logits=is_detailed and bool(generation_config.output_logits),
        )
        wanted = SequenceOptions(
            cache=cache,
            padding=padding,
            reproducible=options.reproducible,
            bita=bita_weights_of(drafter),
            compiled=options.compiled,
            tenant=AnonymousTenant() if tenant is None else tenant,
            hidden_states=() if head is None else head.model.layers,
        )
        super().__init__(
            engine,
            drafter,
            sampler,
            # The lambda does not refer to this request: a reference cycle would keep the KV cache
            # until Python's garbage collector runs.
            RequestOutput(self.history, stopping_criteria, lambda: _as_tuple(sampler.scores)),
            options=options,
            wanted=wanted,
            references=reference_tokens(references, tokenizer, model.config.get_text_config(decoder=True).vocab_size),
            recycling=recycling,
            prefill_chunk=generation_config.prefill_chunk_size,
        )
        if head is not None:
            head.connect(self.sequence.hidden_states.take, engine.lock.run, partial(engine.cache_of, self.sequence))

    def result(self) -> Tensor | GenerateDecoderOnlyOutput:
        """Return the output in the form of `generate`; call it after the last step."""
        if not self.config.return_dict_in_generate:
            return self.history.ids
        fields: dict[str, Any] = {
            "sequences": self.history.ids,
            "scores": _as_tuple(self.sampler.scores),
            "logits": _as_tuple(self.sampler.logits),
            "past_key_values": self.cache,
        }
        return GenerateDecoderOnlyOutput(**fields)


def prepare(
    model: PreTrainedModel,
    input_ids: Tensor | Sequence[int],
    make: Callable[..., Made],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | Sequence[str] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    **arguments: Any,
) -> Made:
    """Call ``make`` with the arguments that `generate` prepares for its decoding loop, and return the result.

    Args:
        input_ids: Token ids of the prompts, shape (batch, length), or of one prompt as a list.
        make: `ModelRequest`, or another function with the same arguments.
        tokenizer: Needed for ``stop_strings``.
        **arguments: Everything else that `generate` takes.

    Raises:
        ValueError: An option is not supported, or `generate` would drop or misread the option; the
            message names the option.
    """
    check_passed_on(model, arguments)
    if not isinstance(input_ids, Tensor):
        input_ids = torch.tensor([list(input_ids)], device=model.device)
    criteria = StoppingCriteriaList(stopping_criteria or [])
    configured = option(model, arguments, "stop_strings")
    if configured:  # handled here, because `generate` does not pass the tokenizer to custom decoding
        stop_strings, arguments["stop_strings"] = stop_strings or configured, None
    if stop_strings:
        if tokenizer is None:
            raise ValueError("stop_strings were given without a tokenizer; pass tokenizer= as well.")
        strings = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
        criteria.append(StopStringCriteria(tokenizer, strings))
    is_given = any(arguments.get(name) is not None for name in CACHE_ARGUMENTS)
    generate: Any = model.generate  # the stubs of transformers leave it out of PreTrainedModel
    custom = partial(make, is_cache_given=is_given)
    made: Made = generate(input_ids, stopping_criteria=criteria, custom_generate=custom, **arguments)
    return made


def _engine_for(
    model: PreTrainedModel, selected: ModelEngine, options: DecodingOptions, *, needs_torch: bool
) -> ModelEngine:
    """Return the selected engine, or torch if the request needs a feature of torch; see `DecodingOptions`."""
    if not (needs_torch or model.training or torch.is_autocast_enabled(model.device.type)):
        return selected
    if options.weights is not None:
        raise ValueError(
            f"weights is {options.weights!r}, which OpenVINO alone has, and this request needs torch: it has "
            "left padding, a cache of its own or a drafter with BiTA's weights, it may become longer than the text at "
            "which the model's rotary frequencies change, or the model is in training."
        )
    return engine_of(model)


def head_part(drafter: object) -> Head | None:
    """Return a drafter's part that runs the model's draft head; None if there is no such part."""
    part = drafter if isinstance(drafter, Head) else getattr(drafter, "head", None)
    return part if isinstance(part, Head) else None


def _as_tuple(tensors: list[Tensor] | None) -> tuple[Tensor, ...] | None:
    return None if tensors is None else tuple(tensors)
