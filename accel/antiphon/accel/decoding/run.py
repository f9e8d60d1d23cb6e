"""One request on its way: its text, who guesses, who chooses, when it ends, and the output that it leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.utils import GenerateDecoderOnlyOutput

from antiphon.accel.decoding.decode import decode
from antiphon.accel.decoding.request import Reference, Request, checked_rows, encode
from antiphon.accel.decoding.sampling import Chooser
from antiphon.accel.decoding.stats import Step
from antiphon.accel.decoding.stopping import Stop
from antiphon.accel.decoding.transcript import Transcript
from antiphon.accel.drafting.budget import Budget
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.drafters.runners_up import runners_up_of
from antiphon.accel.engines.torch.attention import EXACT
from antiphon.accel.engines.torch.bigrams import bigrams_of
from antiphon.accel.engines.torch.bita_weights import BitaWeights, bita_weights_of
from antiphon.accel.engines.torch.cache import CachedModel, cache_of
from antiphon.accel.engines.torch.compiled import CompiledModel, compiled_or_plain, until_left
from antiphon.accel.engines.torch.determinism import STEADY_ROWS, exactly, settled
from antiphon.accel.engines.torch.experience import budget_for
from antiphon.accel.engines.torch.traits import Traits


class Run:
    """The rooms of the engine put together for one text.

    ``steps`` decodes it alone; a `Batch` decodes it beside others, by the same drafter, chooser and stop.

    Raises:
        ValueError, TypeError: a reference is no text, or has tokens that the model does not know.
    """

    def __init__(
        self,
        request: Request,
        drafter: DrafterFactory,
        rows: int | None,
        references: Sequence[Reference],
        tokenizer: PreTrainedTokenizerBase | None,
        generator: torch.Generator | None = None,
        *,
        bucket: int = 0,
        compiled: bool | None = None,
    ) -> None:
        config = request.config
        detailed = bool(config.return_dict_in_generate)
        vocabulary = request.model.config.get_text_config(decoder=True).vocab_size
        self.request = request
        self.rows = min(STEADY_ROWS, bucket - 1) if bucket and rows is None else checked_rows(rows)
        self.bucket = bucket
        self.compiled = compiled
        self.prefill_chunk: int | None = config.prefill_chunk_size
        self.references = encode(references, tokenizer, vocabulary)
        self.drafter = drafter()
        self.learned = bita_weights_of(self.drafter)
        if (table := runners_up_of(self.drafter)) is not None and self.rows != 0:
            table.prior = bigrams_of(request.model)
        self.cached: CachedModel | CompiledModel | None = None
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

    @property
    def prompt(self) -> list[int]:
        """Every token so far but left padding."""
        return self.transcript.tokens[self.request.padding :]

    @property
    def budget(self) -> Budget:
        """Who decides how many rows are verified; the first one of a model may have to measure it."""
        return budget_for(self.request.model, self.drafter, self.rows)

    def steps(self) -> Iterator[Step]:
        """Decode this text alone, with a ``bucket`` deterministically."""
        request = self.request
        cache = cache_of(request.model, dict(request.arguments))
        traits = settled(request.model, self.bucket, cache)
        if self.learned is not None:
            check_suitable(self.learned, request.model, traits, self.bucket)
        plain = CachedModel(
            request.model, traits, cache, padding=request.padding, bucket=self.bucket, learned=self.learned
        )
        self.cached = plain if self.bucket else compiled_or_plain(plain, self.compiled)
        steps = decode(
            self.cached,
            self.drafter,
            self.chooser,
            self.stop,
            self.budget,
            references=self.references,
            prefill_chunk=self.prefill_chunk,
        )
        return exactly(request.model, steps) if self.bucket else until_left(self.cached, steps)

    def output(self) -> Tensor | GenerateDecoderOnlyOutput:
        """What `generate` returns, once every step is done; the cache is that of a text decoded alone."""
        if not self.request.config.return_dict_in_generate:
            return self.transcript.ids
        fields: dict[str, Any] = {
            "sequences": self.transcript.ids,
            "scores": _tuple(self.chooser.scores),
            "logits": _tuple(self.chooser.logits),
            "past_key_values": self.cached and self.cached.cache,
        }
        return GenerateDecoderOnlyOutput(**fields)


def check_suitable(learned: BitaWeights, model: PreTrainedModel, traits: Traits, bucket: int) -> None:
    """Refuse a request whose drafter brings what was learned of a model, where that cannot be shown to this one.

    Raises:
        ValueError: it is another model, or one that verifies no trees; or decoding is deterministic.
    """
    learned.check(model)
    if traits.level != "tree":
        raise ValueError(f"BiTA verifies trees, which {type(model).__name__} cannot: {traits.reason}.")
    if bucket or traits.implementation == EXACT:
        raise ValueError("BiTA is not decoded deterministically: leave deterministic out, or choose another drafter.")


def _tuple(tensors: list[Tensor] | None) -> tuple[Tensor, ...] | None:
    return None if tensors is None else tuple(tensors)
