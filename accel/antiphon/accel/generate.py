"""The seam with transformers: `model.generate(custom_generate=Decoder(), references=[...])`, whole or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

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

from antiphon.accel.decoding.batch import joined, steps_of
from antiphon.accel.decoding.request import Reference, Request, checked_rows, prepare, refuse
from antiphon.accel.decoding.run import Run
from antiphon.accel.decoding.split import share_out, split
from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters.blend import Blend
from antiphon.accel.engines.torch.determinism import bucket_of


class Decoder:
    """Drafted, exact decoding for `model.generate(**inputs, custom_generate=decoder, references=[...])`.

    The output is what `generate` would have returned without it (see `generate` for streamers and stop strings, which
    transformers does not hand on to callables). ``drafter`` makes a fresh drafter for each request, ``tokenizer`` is
    needed where references are texts, and ``on_step`` is told of every forward.

    ``rows`` fixes how many rows of a draft are verified at most. With None each step verifies those that pay, by what
    forwards of this model cost and by what drafts have been worth: the model is measured once, in under two seconds,
    and the figures are kept in the user's cache. So is its word after each frequent token alone, which drafts use where
    nothing better is known, and for which it is asked once, for some three seconds.

    In half precision, where one rounding decides between two tokens that are equally good, drafts can change which of
    them is said (`certify` measures it). With ``deterministic`` they cannot: every forward after the prefill has the
    same number of rows, 1 + ``rows`` (32) rounded up to a multiple of 8 (or the number that it is), and attends to
    each of them by itself, which costs time. The model is given that attention for each step and gets its own back
    after it.

    ``compiled`` steps have fixed shapes and fixed memory: None takes them on a GPU, as CUDA graphs, False never, and
    True on any device, out of code that `torch.compile` has made (see `antiphon.accel.engines.torch.compiled`).
    """

    def __init__(
        self,
        drafter: DrafterFactory = Blend,
        *,
        rows: int | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        on_step: Callable[[Step], None] | None = None,
        deterministic: bool | int = False,
        compiled: bool | None = None,
    ) -> None:
        self.drafter = drafter
        self.rows = checked_rows(rows)
        self.bucket = bucket_of(deterministic, rows)
        self.compiled = compiled
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
        return _finish(
            request, self.drafter, self.rows, references, self.tokenizer, self.on_step, self.bucket, self.compiled
        )


def stream(
    model: PreTrainedModel,
    input_ids: Tensor | Sequence[int],
    *,
    references: Sequence[Reference] = (),
    drafter: DrafterFactory = Blend,
    rows: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | Sequence[str] | None = None,
    generator: torch.Generator | None = None,
    deterministic: bool | int = False,
    compiled: bool | None = None,
    **arguments: Any,
) -> Iterator[Step]:
    """Decode lazily: one Step per forward, its ``tokens`` as plain ids; closing the iterator stops generating.

    Takes what `model.generate` takes (sampling parameters, processors, criteria, cache, ...). A ``generator`` draws
    from its own stream of random numbers instead of torch's global one. The last step says why it ``finish``-ed.
    ``deterministic`` and ``compiled`` are `Decoder`'s.

    Raises:
        ValueError: an option that this decoder does not offer (beams, no cache, embeddings, batches), named; or the
            model cannot be decoded deterministically.
    """
    request = prepare(model, input_ids, tokenizer=tokenizer, stop_strings=stop_strings, **arguments)
    if len(request.input_ids) > 1:
        raise ValueError(f"A stream is of one text, and these are {len(request.input_ids)}; use `generate`.")
    bucket = bucket_of(deterministic, checked_rows(rows))
    return Run(request, drafter, rows, references, tokenizer, generator, bucket=bucket, compiled=compiled).steps()


def generate(
    model: PreTrainedModel,
    input_ids: Tensor | Sequence[int],
    *,
    references: Sequence[Any] = (),
    drafter: DrafterFactory = Blend,
    rows: int | None = None,
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | Sequence[str] | None = None,
    on_step: Callable[[Step], None] | None = None,
    deterministic: bool | int = False,
    compiled: bool | None = None,
    **arguments: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """`model.generate` with drafts: the same arguments, the same output, fewer forwards.

    Other than `custom_generate`, it carries ``streamer`` (the prompt first, then token by token) and ``stop_strings``
    with their ``tokenizer``; ``deterministic`` is `Decoder`'s, and decodes the texts of a batch one by one; so is
    ``compiled``, for a text alone.

    A batch of texts, padded on the left, shares its forwards; ``references`` is then one list for each text. Texts end
    at different steps, so processors and criteria are asked text by text, each with copies of its own; samples follow
    the same law as those of `model.generate`, but use its random numbers in another order.
    """
    request = prepare(model, input_ids, tokenizer=tokenizer, stop_strings=stop_strings, **arguments)
    bucket = bucket_of(deterministic, checked_rows(rows))
    if streamer is None:
        return _finish(request, drafter, rows, references, tokenizer, on_step, bucket, compiled)
    if len(request.input_ids) > 1:
        raise ValueError(f"A streamer is for one text, and these are {len(request.input_ids)}; generate them without.")

    def put(step: Step) -> None:
        if on_step is not None:
            on_step(step)
        for token in step.tokens:
            streamer.put(torch.tensor([token]))

    streamer.put(request.input_ids.cpu())
    output = _finish(request, drafter, rows, references, tokenizer, put, bucket, compiled)
    streamer.end()
    return output


def _finish(
    request: Request,
    drafter: DrafterFactory,
    rows: int | None,
    references: Sequence[Any],
    tokenizer: PreTrainedTokenizerBase | None,
    on_step: Callable[[Step], None] | None,
    bucket: int,
    compiled: bool | None,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Decode every text of a request to its end: together where the model can share forwards, else one by one."""
    shares = share_out(references, request)
    runs = [
        Run(part, drafter, rows, own, tokenizer, bucket=bucket, compiled=compiled)
        for part, own in zip(split(request), shares, strict=True)
    ]
    for steps in steps_of(request.model, runs):
        for step in steps:
            if on_step is not None:
                on_step(step)
    return runs[0].output() if len(runs) == 1 else joined(runs)
