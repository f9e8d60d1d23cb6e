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

from antiphon.accel.cache import CachedModel, cache_of
from antiphon.accel.decode import decode
from antiphon.accel.determinism import bucket_of, exactly, settled
from antiphon.accel.draft import DrafterFactory
from antiphon.accel.drafters.blend import Blend
from antiphon.accel.request import Reference, Request, encode, prepare, refuse
from antiphon.accel.sampling import Chooser
from antiphon.accel.stats import Step
from antiphon.accel.stopping import Stop
from antiphon.accel.transcript import Transcript


class Decoder:
    """Drafted, exact decoding for `model.generate(**inputs, custom_generate=decoder, references=[...])`.

    The output is what `generate` would have returned without it (see `generate` for streamers and stop strings, which
    transformers does not hand on to callables). ``drafter`` makes a fresh drafter for each request, ``rows`` bounds a
    draft, ``tokenizer`` is needed where references are texts, and ``on_step`` is told of every forward.

    In half precision, where one rounding decides between two tokens that are equally good, drafts can change which of
    them is said (`certify` measures it). With ``deterministic`` they cannot: every forward after the prefill has the
    same number of rows, 1 + ``rows`` rounded up to a multiple of 8 (or the number that it is), and attends to each of
    them by itself, which costs time. The model is given that attention for each step and gets its own back after it.
    """

    def __init__(
        self,
        drafter: DrafterFactory = Blend,
        *,
        rows: int = 32,
        tokenizer: PreTrainedTokenizerBase | None = None,
        on_step: Callable[[Step], None] | None = None,
        deterministic: bool | int = False,
    ) -> None:
        self.drafter = drafter
        self.rows = _checked_rows(rows)
        self.bucket = bucket_of(deterministic, rows)
        self.tokenizer = tokenizer
        self.on_step = on_step

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        references: Sequence[Reference] = (),
        **arguments: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Called by `generate` with what it has prepared."""
        request = Request(model, input_ids, logits_processor, stopping_criteria, generation_config, arguments)
        run = _Run(request, self.drafter, self.rows, references, self.tokenizer, bucket=self.bucket)
        for step in run.steps():
            if self.on_step is not None:
                self.on_step(step)
        return run.output()


def stream(
    model: PreTrainedModel,
    input_ids: Tensor | Sequence[int],
    *,
    references: Sequence[Reference] = (),
    drafter: DrafterFactory = Blend,
    rows: int = 32,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | Sequence[str] | None = None,
    generator: torch.Generator | None = None,
    deterministic: bool | int = False,
    **arguments: Any,
) -> Iterator[Step]:
    """Decode lazily: one Step per forward, its ``tokens`` as plain ids; closing the iterator stops generating.

    Takes what `model.generate` takes (sampling parameters, processors, criteria, cache, ...). A ``generator`` draws
    from its own stream of random numbers instead of torch's global one. The last step says why it ``finish``-ed.
    ``deterministic`` is `Decoder`'s.

    Raises:
        ValueError: an option that this decoder does not offer (beams, no cache, embeddings, batches), named; or the
            model cannot be decoded deterministically.
    """
    request = prepare(model, input_ids, tokenizer=tokenizer, stop_strings=stop_strings, **arguments)
    bucket = bucket_of(deterministic, _checked_rows(rows))
    run = _Run(request, drafter, rows, references, tokenizer, generator, bucket=bucket)
    return run.steps()


def generate(
    model: PreTrainedModel,
    input_ids: Tensor | Sequence[int],
    *,
    references: Sequence[Reference] = (),
    drafter: DrafterFactory = Blend,
    rows: int = 32,
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: str | Sequence[str] | None = None,
    on_step: Callable[[Step], None] | None = None,
    deterministic: bool | int = False,
    **arguments: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """`model.generate` with drafts: the same arguments, the same output, fewer forwards.

    Other than `custom_generate`, it carries ``streamer`` (the prompt first, then token by token) and ``stop_strings``
    with their ``tokenizer``; ``deterministic`` is `Decoder`'s.
    """
    request = prepare(model, input_ids, tokenizer=tokenizer, stop_strings=stop_strings, **arguments)
    bucket = bucket_of(deterministic, _checked_rows(rows))
    run = _Run(request, drafter, rows, references, tokenizer, bucket=bucket)
    if streamer is not None:
        streamer.put(request.input_ids.cpu())
    for step in run.steps():
        if on_step is not None:
            on_step(step)
        if streamer is not None:
            for token in step.tokens:
                streamer.put(torch.tensor([token]))
    if streamer is not None:
        streamer.end()
    return run.output()


class _Run:
    """One request on its way: the rooms of the engine put together, and the output they leave."""

    def __init__(
        self,
        request: Request,
        drafter: DrafterFactory,
        rows: int,
        references: Sequence[Reference],
        tokenizer: PreTrainedTokenizerBase | None,
        generator: torch.Generator | None = None,
        *,
        bucket: int = 0,
    ) -> None:
        refuse(request)
        config = request.config
        detailed = bool(config.return_dict_in_generate)
        self.request = request
        self.rows = rows
        self.bucket = bucket
        vocabulary = request.model.config.get_text_config(decoder=True).vocab_size
        self.references = encode(references, tokenizer, vocabulary)
        self.drafter = drafter()
        cache = cache_of(request.model, dict(request.arguments))
        traits = settled(request.model, bucket, cache)
        self.cached = CachedModel(request.model, traits, cache, padding=request.padding, bucket=bucket)
        self.transcript = Transcript(request.input_ids)
        self.chooser = Chooser(
            self.transcript,
            request.processors,
            sample=bool(config.do_sample),
            generator=generator,
            keep_scores=detailed and bool(config.output_scores),
            keep_logits=detailed and bool(config.output_logits),
        )
        self.stop = Stop(self.transcript, request.criteria, lambda: _tuple(self.chooser.scores))

    def steps(self) -> Iterator[Step]:
        steps = decode(
            self.cached,
            self.drafter,
            self.chooser,
            self.stop,
            references=self.references,
            rows=self.rows,
            prefill_chunk=self.request.config.prefill_chunk_size,
        )
        return exactly(self.request.model, steps) if self.bucket else steps

    def output(self) -> Tensor | GenerateDecoderOnlyOutput:
        if not self.request.config.return_dict_in_generate:
            return self.transcript.ids
        fields: dict[str, Any] = {
            "sequences": self.transcript.ids,
            "scores": _tuple(self.chooser.scores),
            "logits": _tuple(self.chooser.logits),
            "past_key_values": self.cached.cache,
        }
        return GenerateDecoderOnlyOutput(**fields)


def _checked_rows(rows: int) -> int:
    if not isinstance(rows, int) or rows < 0:
        raise ValueError(f"rows is {rows!r}; a draft has 0 rows (plain decoding) or more.")
    return rows


def _tuple(tensors: list[Tensor] | None) -> tuple[Tensor, ...] | None:
    return None if tensors is None else tuple(tensors)
