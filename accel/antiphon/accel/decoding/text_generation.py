"""One request on its way: its text, who drafts, who chooses, when it ends, and the output that it leaves."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache, PreTrainedTokenizerBase
from transformers.generation.utils import GenerateDecoderOnlyOutput

from antiphon.accel.decoding.batch import Batch
from antiphon.accel.decoding.choice import factory_of
from antiphon.accel.decoding.loop import loop_of
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.decoding.request import Reference, Request, reference_tokens
from antiphon.accel.decoding.running_text import Text
from antiphon.accel.decoding.sampling import Chooser
from antiphon.accel.decoding.stats import Step
from antiphon.accel.decoding.stopping import Stop
from antiphon.accel.decoding.transcript import Transcript
from antiphon.accel.drafting.draft import Drafter
from antiphon.accel.drafting.drafters.runners_up import runners_up_of
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.protocol import CachedSequence, Tenant
from antiphon.accel.engines.selection import select
from antiphon.accel.engines.torch.bita_weights import bita_weights_of
from antiphon.accel.engines.torch.engine import TorchEngine, engine_of


class TextGeneration:
    """The parts of a request put together, ready for the loop. Whoever makes one holds the engine's lock.

    Engines whose texts share memory read a beginning once for all requests of one ``tenant``; without one this request
    shares nothing with others.

    Raises:
        ValueError, TypeError: a reference is no text, or has tokens that the model does not know; the model cannot be
            decoded deterministically, or is not the one that a drafter was trained for.
    """

    def __init__(
        self,
        request: Request,
        references: Sequence[Reference] = (),
        tokenizer: PreTrainedTokenizerBase | None = None,
        generator: torch.Generator | None = None,
        options: DecodingOptions | None = None,
        tenant: Hashable = None,
    ) -> None:
        options = options or DecodingOptions()
        config, engine = request.config, select(request.model, options.runs_on).engine
        detailed = bool(config.return_dict_in_generate)
        vocabulary = request.model.config.get_text_config(decoder=True).vocab_size
        self.request = request
        drafter = factory_of(options, engine)()
        if _needs_torch(request, drafter):
            if options.weights is not None:
                raise ValueError(
                    f"weights is {options.weights!r}, which OpenVINO alone has, and this request needs torch: it has "
                    "left padding, a cache of its own or a drafter with BiTA's weights, or the model is in training."
                )
            engine = engine_of(request.model)
        self.engine = engine
        table = runners_up_of(drafter)
        if table is not None and options.draft_rows != 0:
            table.prior = engine.bigrams
        self.transcript = Transcript(request.input_ids)
        self.chooser = chooser = Chooser(
            self.transcript,
            request.processors,
            sample=bool(config.do_sample),
            generator=generator,
            keep_scores=detailed and bool(config.output_scores),
            keep_logits=detailed and bool(config.output_logits),
        )
        # Nothing here may lead back to this object: its cache would wait for Python's collector.
        self.stop = Stop(self.transcript, request.criteria, lambda: _tuple(chooser.scores))
        sequence = self._sequence(options, drafter, Tenant() if tenant is None else tenant)
        self.text = Text(
            sequence,
            drafter,
            self.chooser,
            self.stop,
            engine.budget(drafter, options.draft_rows, options.cost, reproducible=options.reproducible),
            reference_tokens(references, tokenizer, vocabulary),
            config.prefill_chunk_size,
        )

    def steps(self) -> Iterator[Step]:
        """Decode this text; forwards are shared with whoever decodes on the same model at the same time."""
        return self.releasing(loop_of(self.engine).steps(self.text))

    @torch.no_grad()
    def releasing(self, steps: Iterator[Step]) -> Iterator[Step]:
        """The same steps; when they end, or nobody asks for more, the memory of this text is others'."""
        try:
            yield from steps
        finally:
            self.engine.release(self.text.sequence)

    def _sequence(self, options: DecodingOptions, drafter: Drafter, tenant: Hashable) -> CachedSequence:
        """The memory of the text, on the engine that decodes it."""
        request, engine = self.request, self.engine
        if isinstance(engine, OpenVINOEngine):
            return engine.sequence(self.transcript.tokens, tenant=tenant, shared=not options.reproducible)
        return engine_of(request.model).sequence(
            request.cache,
            padding=request.padding,
            fixed_rows=options.fixed_rows,
            bita=bita_weights_of(drafter),
            compiled=options.compiled,
            shared=not options.reproducible,
        )

    @property
    def cache(self) -> Cache | None:
        """What the model has read of the text; None on an engine that has no cache of transformers."""
        return self.engine.cache_of(self.text.sequence) if isinstance(self.engine, TorchEngine) else None

    def output(self) -> Tensor | GenerateDecoderOnlyOutput:
        """What `generate` returns, once every step is done."""
        if not self.request.config.return_dict_in_generate:
            return self.transcript.ids
        fields: dict[str, Any] = {
            "sequences": self.transcript.ids,
            "scores": _tuple(self.chooser.scores),
            "logits": _tuple(self.chooser.logits),
            "past_key_values": self.cache,
        }
        return GenerateDecoderOnlyOutput(**fields)


def _needs_torch(request: Request, drafter: Drafter) -> bool:
    """Whether something is asked for that no other engine has; see `DecodingOptions`."""
    return bool(
        request.padding
        or request.has_own_cache
        or request.model.training
        or torch.is_autocast_enabled(request.model.device.type)
        or bita_weights_of(drafter) is not None
    )


def steps_of(generations: Sequence[TextGeneration], size: int | None = None) -> list[Iterator[Step]]:
    """The steps of each text: from forwards that ``size`` texts (all) share where the model allows it."""
    texts = [generation.text for generation in generations]
    engines = {generation.engine for generation in generations}
    engine = engines.pop() if len(engines) == 1 and len(texts) > 1 else None
    if engine is None or not engine.lock.take(lambda: all(text.sequence.is_shareable for text in texts)):
        return [generation.steps() for generation in generations]
    batch = Batch(loop_of(engine), size=size or len(texts))
    return [each.releasing(batch.add(each.text, partial(engine.release, each.text.sequence))) for each in generations]


def joined(generations: Sequence[TextGeneration]) -> Tensor | GenerateDecoderOnlyOutput:
    """What `generate` returns for a batch, without a cache: where a text has ended, padding is certain."""
    config = generations[0].request.config
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    padding = next((token for token in (config.pad_token_id, *ends) if token is not None), 0)
    length = max(len(each.transcript.tokens) for each in generations)
    sequences = torch.cat(
        [pad(ids, (0, length - ids.shape[1]), value=padding) for ids in (each.transcript.ids for each in generations)]
    )
    if not config.return_dict_in_generate:
        return sequences
    fields: dict[str, Any] = {
        "sequences": sequences,
        "scores": _side_by_side([each.chooser.scores for each in generations], padding),
        "logits": _side_by_side([each.chooser.logits for each in generations], padding),
    }
    return GenerateDecoderOnlyOutput(**fields)


def _side_by_side(kept: Sequence[list[Tensor] | None], padding: int) -> tuple[Tensor, ...] | None:
    """The rows of every text, step by step, each of shape (texts, vocab)."""
    rows = [tensors for tensors in kept if tensors is not None]
    if not rows:
        return None
    ended = torch.full_like(rows[0][0], -torch.inf)
    ended[:, padding] = 0.0
    return tuple(torch.cat(step) for step in zip_longest(*rows, fillvalue=ended))


def _tuple(tensors: list[Tensor] | None) -> tuple[Tensor, ...] | None:
    return None if tensors is None else tuple(tensors)
