"""Decoding through transformers' interface: `model.generate(custom_generate=Decoder(), references=[...])`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from antiphon.accel.decoding.engine_request import decode_together
from antiphon.accel.decoding.generate_arguments import Reference
from antiphon.accel.decoding.generate_batch import merge_results, requests_of_batch
from antiphon.accel.decoding.model_request import ModelRequest, prepare
from antiphon.accel.decoding.options import DecodingKeywords, DecodingOptions, pop_options
from antiphon.accel.decoding.stats import Step
from antiphon.accel.engines.torch.engine import engine_of


class Decoder:
    """Speculative decoding for `model.generate(**inputs, custom_generate=decoder, references=[...])`.

    The output equals the output of `generate` without the decoder. Transformers does not pass
    streamers and stop strings on to a custom decoding function; to use them, call `generate` of
    this module.

    Args:
        tokenizer: Needed if references are texts.
        on_step: Called with every step.
        **options: The fields of `DecodingOptions`.
    """

    def __init__(
        self,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        on_step: Callable[[Step], None] | None = None,
        **options: Unpack[DecodingKeywords],
    ) -> None:
        self.options = DecodingOptions(**options)
        self.tokenizer = tokenizer
        self.on_step = on_step

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        references: Sequence[Any] = (),
        **arguments: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Decode a request that `generate` of transformers has prepared."""
        prepared = (model, input_ids, logits_processor, stopping_criteria, generation_config)
        arguments |= {"references": references, "tokenizer": self.tokenizer, "options": self.options}
        requests = engine_of(model).lock.run(lambda: requests_of_batch(*prepared, **arguments))
        return _finish(requests, self.on_step)


def stream(
    model: PreTrainedModel,
    input_ids: Tensor | Sequence[int],
    *,
    references: Sequence[Reference] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | Sequence[str] | None = None,
    generator: torch.Generator | None = None,
    **arguments: Any,
) -> Iterator[Step]:
    """Yield a Step with the emitted token ids after each forward pass.

    Closing the iterator stops generation.

    Args:
        input_ids: Token ids of one prompt, as a list or of shape (1, length).
        references: Texts, or token ids, that the output may repeat.
        tokenizer: Needed if references are texts, and for stop strings.
        generator: Source of random numbers; None: torch's global one.
        **arguments: Arguments of `model.generate` (sampling parameters, processors, criteria, cache, ...), and the
            fields of `DecodingOptions`.

    Raises:
        ValueError: An option is not supported (beams, batches, embeddings, no cache, ...); the
            message names the option. Or the model does not support reproducible decoding.
    """
    options = pop_options(arguments)
    if isinstance(input_ids, Tensor) and len(input_ids) > 1:
        raise ValueError(f"A stream is of one text, and these are {len(input_ids)}; use `generate`.")
    make = partial(ModelRequest, references=references, tokenizer=tokenizer, generator=generator, options=options)
    arguments |= {"tokenizer": tokenizer, "stop_strings": stop_strings}
    return engine_of(model).lock.run(lambda: prepare(model, input_ids, make, **arguments)).steps()


def generate(
    model: PreTrainedModel,
    input_ids: Tensor | Sequence[int],
    *,
    references: Sequence[Any] = (),
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | Sequence[str] | None = None,
    on_step: Callable[[Step], None] | None = None,
    **arguments: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Generate like `model.generate`, with the same arguments and output, but fewer forward passes.

    The sequences of a batch (padded on the left) share forward passes, except in reproducible decoding and with
    compiled steps. Sequences end at different steps, so each sequence gets its own copies of
    processors and criteria. Samples have the same distribution as with `model.generate`, but random
    numbers are used in another order.

    Args:
        input_ids: Token ids of the prompts, shape (batch, length), or of one prompt as a list.
        references: Texts, or token ids, that the output may repeat; for a batch, one list per prompt.
        streamer: Receives the prompt first, then each emitted token.
        tokenizer: Needed if references are texts, and for stop strings.
        on_step: Called with every step.
        **arguments: Further arguments of `model.generate`, and the fields of `DecodingOptions`.

    Raises:
        ValueError: An option is not supported; the message names the option.
    """
    make = partial(requests_of_batch, references=references, tokenizer=tokenizer, options=pop_options(arguments))
    arguments |= {"tokenizer": tokenizer, "stop_strings": stop_strings}
    requests = engine_of(model).lock.run(lambda: prepare(model, input_ids, make, **arguments))
    if streamer is None:
        return _finish(requests, on_step)
    if len(requests) > 1:
        raise ValueError(f"A streamer is for one text, and these are {len(requests)}; generate them without.")

    def put(step: Step) -> None:
        if on_step is not None:
            on_step(step)
        for token in step.tokens:
            streamer.put(torch.tensor([token]))

    streamer.put(requests[0].history.ids.cpu())
    result = _finish(requests, put)
    streamer.end()
    return result


def _finish(
    requests: Sequence[ModelRequest], on_step: Callable[[Step], None] | None
) -> Tensor | GenerateDecoderOnlyOutput:
    """Decode the sequences of a batch: together if the model can share forward passes, else one by one."""
    for steps in decode_together(requests):
        for step in steps:
            if on_step is not None:
                on_step(step)
    return requests[0].result() if len(requests) == 1 else merge_results(requests)
