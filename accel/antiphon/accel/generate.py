"""The seam with transformers: `model.generate(custom_generate=Decoder(), references=[...])`, whole or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

from antiphon.accel.decoding.options import DecodingKeywords, DecodingOptions, take_options
from antiphon.accel.decoding.request import Reference, Request, prepare, refuse
from antiphon.accel.decoding.split import share_out, split
from antiphon.accel.decoding.stats import Step
from antiphon.accel.decoding.text_generation import TextGeneration, joined, steps_of
from antiphon.accel.engines.torch.engine import engine_of


class Decoder:
    """Drafted, exact decoding for `model.generate(**inputs, custom_generate=decoder, references=[...])`.

    The output is what `generate` would have returned without it (see `generate` for streamers and stop strings, which
    transformers does not hand on to callables). ``tokenizer`` is needed where references are texts, and ``on_step`` is
    told of every forward. The other arguments are those of `DecodingOptions`.
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
        """Called by `generate` with what it has prepared."""
        request = Request(model, input_ids, logits_processor, stopping_criteria, generation_config, arguments)
        refuse(request)
        return _finish(request, references, self.tokenizer, self.on_step, self.options)


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
    """Decode lazily: one Step per forward, its ``tokens`` as plain ids; closing the iterator stops generating.

    Takes what `model.generate` takes (sampling parameters, processors, criteria, cache, ...) and `DecodingOptions`. A
    ``generator`` draws from its own stream of random numbers instead of torch's global one. The last step says why it
    ``finish``-ed.

    Raises:
        ValueError: an option that this decoder does not offer (beams, no cache, embeddings, batches), named; or the
            model cannot be decoded deterministically.
    """
    options = take_options(arguments)
    request = prepare(model, input_ids, tokenizer=tokenizer, stop_strings=stop_strings, **arguments)
    if len(request.input_ids) > 1:
        raise ValueError(f"A stream is of one text, and these are {len(request.input_ids)}; use `generate`.")
    lock = engine_of(model).lock
    return lock.take(lambda: TextGeneration(request, references, tokenizer, generator, options)).steps()


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
    """`model.generate` with drafts: the same arguments and `DecodingOptions`, the same output, fewer forwards.

    Other than `custom_generate`, it carries ``streamer`` (the prompt first, then token by token) and ``stop_strings``
    with their ``tokenizer``. Deterministically, the texts of a batch are decoded one by one; compiled steps are for a
    text alone.

    A batch of texts, padded on the left, shares its forwards; ``references`` is then one list for each text. Texts end
    at different steps, so processors and criteria are asked text by text, each with copies of its own; samples follow
    the same law as those of `model.generate`, but use its random numbers in another order.
    """
    options = take_options(arguments)
    request = prepare(model, input_ids, tokenizer=tokenizer, stop_strings=stop_strings, **arguments)
    if streamer is None:
        return _finish(request, references, tokenizer, on_step, options)
    if len(request.input_ids) > 1:
        raise ValueError(f"A streamer is for one text, and these are {len(request.input_ids)}; generate them without.")

    def put(step: Step) -> None:
        if on_step is not None:
            on_step(step)
        for token in step.tokens:
            streamer.put(torch.tensor([token]))

    streamer.put(request.input_ids.cpu())
    output = _finish(request, references, tokenizer, put, options)
    streamer.end()
    return output


def _finish(
    request: Request,
    references: Sequence[Any],
    tokenizer: PreTrainedTokenizerBase | None,
    on_step: Callable[[Step], None] | None,
    options: DecodingOptions,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Decode every text of a request to its end: together where the model can share forwards, else one by one."""
    shares = share_out(references, request)
    engine = engine_of(request.model)

    def begin() -> list[TextGeneration]:
        parts = zip(split(request), shares, strict=True)
        return [TextGeneration(part, own, tokenizer, None, options) for part, own in parts]

    generations = engine.lock.take(begin)
    for steps in steps_of(generations):
        for step in steps:
            if on_step is not None:
                on_step(step)
    return generations[0].output() if len(generations) == 1 else joined(generations)
