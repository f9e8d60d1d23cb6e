"""A request assembled for decoding (engine, sequence, drafter, sampler, stopping rules, budget), and its output."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedTokenizerBase
from transformers.generation.utils import GenerateDecoderOnlyOutput

from antiphon.accel.decoding.batch import Batch
from antiphon.accel.decoding.drafter_choice import drafter_factory
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.decoding.output import RequestOutput, TokenHistory
from antiphon.accel.decoding.request import Reference, Request, reference_tokens
from antiphon.accel.decoding.running_request import RunningRequest
from antiphon.accel.decoding.sampling import Sampler
from antiphon.accel.decoding.scheduler import scheduler_of
from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.draft import Drafter
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.drafting.drafters.recycling_table import SharesTable, recycling_table_of
from antiphon.accel.engines.protocol import AnonymousTenant, CachedSequence, ModelEngine, SequenceOptions
from antiphon.accel.engines.selection import select_engine
from antiphon.accel.engines.torch.bita_weights import bita_weights_of
from antiphon.accel.engines.torch.engine import engine_of


class Generation:
    """One request, ready for the scheduler. The thread that creates it holds the engine's lock.

    Args:
        request: What `generate` prepared.
        references: Texts, or token ids, that drafts may be copied from.
        tokenizer: Needed if references are texts.
        generator: Source of random numbers; None: torch's global one.
        options: How to decode; None: the defaults.
        tenant: An engine with one KV cache for all requests reuses prefixes within a tenant; None: reuse none.
        recycling: True: the drafter keeps its own recycling table; a table: it is shared with other requests, unless
            the drafter was made with one; False: none.

    Raises:
        ValueError, TypeError: A reference is not a text or has tokens that the model does not know; the model cannot be
            decoded reproducibly, or is not the one that a drafter was trained for.
    """

    def __init__(
        self,
        request: Request,
        references: Sequence[Reference] = (),
        tokenizer: PreTrainedTokenizerBase | None = None,
        generator: torch.Generator | None = None,
        options: DecodingOptions | None = None,
        tenant: Hashable = None,
        *,
        recycling: bool | RecyclingTable = True,
    ) -> None:
        options = options or DecodingOptions()
        config, selected = request.config, select_engine(request.model, options.engine_choice).engine
        drafter = drafter_factory(options, selected)()
        self.request = request
        self.engine = engine = _engine_for(request, drafter, selected, options)
        if recycling is not True and isinstance(drafter, SharesTable):
            drafter.use_table(recycling or None)
        table = recycling_table_of(drafter)
        if table is not None and options.max_draft_rows != 0:
            table.prior = engine.bigrams
        self.history = TokenHistory(request.input_ids)
        is_detailed = bool(config.return_dict_in_generate)
        self.sampler = sampler = Sampler(
            self.history,
            request.processors,
            sample=bool(config.do_sample),
            generator=generator,
            keep_scores=is_detailed and bool(config.output_scores),
            keep_logits=is_detailed and bool(config.output_logits),
        )
        # No reference cycle back to this object: it would keep the KV cache until Python's garbage collector runs.
        output = RequestOutput(self.history, request.criteria, lambda: _as_tuple(sampler.scores))
        self.running = RunningRequest(
            self._new_sequence(options, drafter, AnonymousTenant() if tenant is None else tenant),
            drafter,
            sampler,
            output,
            engine.budget(drafter, options.max_draft_rows, options.cost),
            reference_tokens(references, tokenizer, request.model.config.get_text_config(decoder=True).vocab_size),
            config.prefill_chunk_size,
        )

    def steps(self) -> Iterator[Step]:
        """Yield the steps of this request; forward passes are shared with other requests to the same model."""
        return self.release_after(scheduler_of(self.engine).steps(self.running))

    @torch.no_grad()
    def release_after(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Yield the given steps, and release the request's memory when they end or the iterator is closed."""
        try:
            yield from steps
        finally:
            self.engine.release(self.running.sequence)

    @property
    def cache(self) -> Cache | None:
        """The KV cache of the request; None if the engine has no cache of transformers."""
        return self.engine.cache_of(self.running.sequence)

    def output(self) -> Tensor | GenerateDecoderOnlyOutput:
        """Return what `generate` returns, once every step is done."""
        if not self.request.config.return_dict_in_generate:
            return self.history.ids
        fields: dict[str, Any] = {
            "sequences": self.history.ids,
            "scores": _as_tuple(self.sampler.scores),
            "logits": _as_tuple(self.sampler.logits),
            "past_key_values": self.cache,
        }
        return GenerateDecoderOnlyOutput(**fields)

    def _new_sequence(self, options: DecodingOptions, drafter: Drafter, tenant: Hashable) -> CachedSequence:
        wanted = SequenceOptions(
            cache=self.request.cache,
            padding=self.request.padding,
            reproducible=options.reproducible,
            bita=bita_weights_of(drafter),
            compiled=options.compiled,
            tenant=tenant,
        )
        return self.engine.new_sequence(self.history.tokens, wanted)


def decode_together(generations: Sequence[Generation], size: int | None = None) -> list[Iterator[Step]]:
    """Return the steps of each request; they share forward passes if the model supports it.

    Args:
        size: Maximum number of requests that are decoded at the same time; None: all.
    """
    requests = [generation.running for generation in generations]
    engines = {generation.engine for generation in generations}
    engine = engines.pop() if len(engines) == 1 and len(requests) > 1 else None
    if engine is None or not engine.lock.run(lambda: all(request.sequence.can_batch for request in requests)):
        return [generation.steps() for generation in generations]
    batch = Batch(scheduler_of(engine), size=size or len(requests))
    return [
        generation.release_after(batch.add(generation.running, partial(engine.release, generation.running.sequence)))
        for generation in generations
    ]


def _engine_for(request: Request, drafter: Drafter, selected: ModelEngine, options: DecodingOptions) -> ModelEngine:
    """Return the selected engine, or torch if the request needs a feature of torch; see `DecodingOptions`."""
    needs_torch = (
        request.padding
        or request.has_own_cache
        or request.model.training
        or torch.is_autocast_enabled(request.model.device.type)
        or bita_weights_of(drafter) is not None
    )
    if needs_torch and options.weights is not None:
        raise ValueError(
            f"weights is {options.weights!r}, which OpenVINO alone has, and this request needs torch: it has "
            "left padding, a cache of its own or a drafter with BiTA's weights, or the model is in training."
        )
    return engine_of(request.model) if needs_torch else selected


def _as_tuple(tensors: list[Tensor] | None) -> tuple[Tensor, ...] | None:
    return None if tensors is None else tuple(tensors)
