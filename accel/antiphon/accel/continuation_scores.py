"""Log-probabilities of given continuations of prompts: one draft tree below each prompt, in one forward pass.

Continuations with a common beginning share rows. Models and texts that cannot be verified as a tree take more forward
passes: one for each continuation at worst.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.accel.certify import last_logits, token_ranges
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.decoding.prefix_cache import PrefixCache
from antiphon.accel.drafting.draft import EMPTY, ROOT, Draft, Tokens
from antiphon.accel.engines.protocol import CachedSequence, ModelEngine, SequenceInput, SequenceOptions
from antiphon.accel.engines.selection import select_engine
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.traits import declared_traits

MAX_ROWS = 128
"""Maximum number of rows of a draft tree with several continuations, because masks and logits take memory."""

MAX_PROMPTS = 8
"""Maximum number of prompts whose KV caches are held at the same time."""

BLOCK = 64
"""Number of rows of logits that are converted to float32 at a time."""


@dataclass(slots=True)
class ScoreRequest:
    """A prompt with its continuations.

    Attributes:
        prompt: Token ids of the prompt.
        continuations: Token ids of each continuation.
        prefix: Prefix cache; it holds the prompt afterwards.
        scores: The summed log-probability of each continuation in nats, once it is known.
    """

    prompt: Tokens
    continuations: Sequence[Tokens]
    prefix: PrefixCache | None = None
    scores: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    """The continuations, by their indices, that one forward pass verifies, and their draft tree."""

    indices: tuple[int, ...] = ()
    draft: Draft = EMPTY


def score_continuations(
    model: PreTrainedModel, requests: Sequence[ScoreRequest], options: DecodingOptions, tenant: Hashable
) -> list[list[float]]:
    """Return sum of log p(token | prompt, tokens before it) of each continuation, in nats.

    Prompts share forward passes if the engine can. The engine's lock is held during the passes of one group of prompts,
    so that other requests are decoded before and after it.

    Args:
        model: The causal model.
        requests: The prompts with their continuations.
        options: Engine, compiled steps, fixed number of rows.
        tenant: Owner of the prompts that have no prefix cache.
    """
    engine = select_engine(model, options.engine_choice).engine
    if model.training or torch.is_autocast_enabled(model.device.type):
        options.check_certifiable()
        engine = engine_of(model)  # as for generation
    for group in _groups(requests, engine.prefill_batch_tokens, 1 if options.reproducible else MAX_PROMPTS):
        try:
            engine.lock.run(_Group(model, engine, group, options, tenant).score)
        except MemoryError:
            if len(group) == 1:
                raise
            for request in group:  # their KV caches do not fit into memory together
                engine.lock.run(_Group(model, engine, [request], options, tenant).score)
    return [[request.scores[index] for index in range(len(request.continuations))] for request in requests]


@dataclass(slots=True)
class _Job:
    """A prompt that is verified by drafts, its sequence, and the parts that are still to be verified."""

    request: ScoreRequest
    sequence: CachedSequence
    parts: list[_Part]


class _Group:
    """Prompts whose forward passes are shared if the engine can. The caller holds the engine's lock."""

    def __init__(
        self,
        model: PreTrainedModel,
        engine: ModelEngine,
        requests: Sequence[ScoreRequest],
        options: DecodingOptions,
        tenant: Hashable,
    ) -> None:
        self._model = model
        self._engine = engine
        self._requests = requests
        self._by_draft: list[ScoreRequest] = []
        self._options = options
        self._tenant = tenant
        self._max_rows = min(MAX_ROWS, options.fixed_rows - 1) if options.fixed_rows else MAX_ROWS
        self._sequences: list[CachedSequence] = []

    @torch.no_grad()
    def score(self) -> None:
        """Set the scores of all requests, and leave their prompts in their prefix caches."""
        try:
            # 1. Prefill each prompt up to its last token.
            if self._engine.level != "plain":
                self._by_draft = [each for each in self._requests if not _frequencies_change(self._model, each)]
            for request in self._by_draft:
                self._sequences.append(self._new_sequence(request))
            self._prefill()
            # 2. Compute the last token with a draft tree of all continuations, or in parts if they do not fit.
            pairs = list(zip(self._by_draft, self._sequences, strict=True))
            jobs = [_Job(*each, self._parts(*each)) for each in pairs]
            while remaining := [job for job in jobs if job.parts]:
                self._verify(remaining)
            # 3. Compute what no draft can verify in plain forward passes.
            for request in self._requests:
                for index, tokens in enumerate(request.continuations):
                    if index not in request.scores:
                        request.scores[index] = plain_score(self._model, request.prompt, tokens)
            for request, sequence in pairs:
                if request.prefix is not None:
                    request.prefix.keep(self._model, request.prompt, self._engine.cache_of(sequence))
        finally:
            for sequence in self._sequences:
                self._engine.release(sequence)

    def _new_sequence(self, request: ScoreRequest) -> CachedSequence:
        prefix = request.prefix
        options = SequenceOptions(
            tenant=self._tenant if prefix is None else prefix.tenant,
            can_batch=not self._options.reproducible,
            cache=None if prefix is None else prefix.take(self._model, request.prompt),
            fixed_rows=self._options.fixed_rows,
            compiled=self._options.compiled,
        )
        return self._engine.new_sequence(request.prompt, options)

    def _prefill(self) -> None:
        pairs = zip(self._by_draft, self._sequences, strict=True)
        inputs = [SequenceInput(own, request.prompt[own.length : -1]) for request, own in pairs]
        inputs = [each for each in inputs if each.pending]
        fits = sum(len(each.pending) for each in inputs) <= self._engine.prefill_batch_tokens
        for shared in self._batches(inputs) if fits else [[each] for each in inputs]:
            self._engine.forward(shared)
            for each in shared:
                each.sequence.keep(())

    def _parts(self, request: ScoreRequest, sequence: CachedSequence) -> list[_Part]:
        """Split the continuations into parts that fit one forward pass; those that fit none are left out."""
        longest = max(map(len, request.continuations), default=0)
        parts = [_Part()]
        for index, tokens in sorted(enumerate(request.continuations), key=lambda each: tuple(each[1])):
            for indices in ((*parts[-1].indices, index), (index,)):
                draft = draft_tree([request.continuations[each] for each in indices])
                if len(draft) > max(self._max_rows, len(tokens) - 1):  # one continuation may have any length
                    continue
                fitted = sequence.fit(draft, sys.maxsize, longest)
                if len(fitted) == len(draft):
                    if parts[-1].indices == indices[:-1]:
                        parts.pop()
                    parts.append(_Part(indices, fitted))
                    break
        return parts

    def _verify(self, jobs: Sequence[_Job]) -> None:
        """Run the next forward pass of each job, and set the scores of its continuations."""
        pending = [job.request.prompt[job.sequence.length :] for job in jobs]
        inputs = [SequenceInput(job.sequence, own, job.parts[0].draft) for job, own in zip(jobs, pending, strict=True)]
        waiting = iter(jobs)
        for shared in self._batches(inputs):
            for logits, job in zip(self._engine.forward(shared), waiting, strict=False):
                part = job.parts.pop(0)
                texts = [job.request.continuations[each] for each in part.indices]
                scores = log_probabilities(logits.tensor(), part.draft, texts)
                job.request.scores |= zip(part.indices, scores, strict=True)
                if job.parts:
                    job.sequence.discard()  # the next part follows the same token
                else:
                    job.sequence.keep(())

    def _batches(self, inputs: Sequence[SequenceInput]) -> list[list[SequenceInput]]:
        """Return the inputs of each forward pass: one for all, or one for each if they cannot be shared."""
        shares = all(each.sequence.can_batch for each in inputs)
        return [list(inputs)] if inputs and shares else [[each] for each in inputs]


def draft_tree(continuations: Sequence[Tokens]) -> Draft:
    """Return the continuations as one tree, each without its last token, whose logits are not needed."""
    tokens: list[int] = []
    parents: list[int] = []
    rows: dict[tuple[int, int], int] = {}
    for continuation in continuations:
        parent = ROOT
        for token in continuation[:-1]:
            if (parent, token) not in rows:
                rows[parent, token] = len(tokens)
                tokens.append(token)
                parents.append(parent)
            parent = rows[parent, token]
    return Draft(tuple(tokens), tuple(parents), (1.0,) * len(tokens))


def log_probabilities(logits: Tensor, draft: Draft, continuations: Sequence[Tokens]) -> list[float]:
    """Return the summed log-probability of each continuation in nats.

    Args:
        logits: Logits after the root and after each row of the draft, shape (1 + rows, vocab).
        draft: A tree that contains each continuation up to its last token.
        continuations: Token ids.
    """
    totals = torch.cat([rows.float().logsumexp(-1) for rows in torch.split(logits, BLOCK)])
    scores: list[float] = []
    for tokens in continuations:
        rows = [ROOT]
        for token in tokens[:-1]:
            rows.append(draft.children[rows[-1]][token])
        places = [row + 1 for row in rows[: len(tokens)]]
        scores.append(float((logits[places, list(tokens)].float() - totals[places]).double().sum()))
    return scores


def plain_score(model: PreTrainedModel, prompt: Tokens, continuation: Tokens) -> float:
    """Return the summed log-probability of a continuation in nats, from a forward pass of torch without a cache.

    Args:
        model: The causal model.
        prompt: Token ids of the prompt.
        continuation: Token ids of the continuation.

    Raises:
        ValueError: The model changes its rotary frequencies within the continuation while its cache keeps the old ones.
    """
    ids = torch.tensor([[*prompt, *continuation]], device=model.device)
    score = 0.0
    for first, last in token_ranges(model, len(prompt), ids.shape[1], 0) if continuation else ():
        read = ids[:, : last - 1]
        logits = last_logits(model, read, torch.ones_like(read), last - first).float().log_softmax(-1)
        score += float(logits.gather(1, ids[0, first:last, None]).double().sum())
    return score


def _frequencies_change(model: PreTrainedModel, request: ScoreRequest) -> bool:
    """Return whether rotary frequencies differ between the prompt's last token and the end of the continuations."""
    rope, prompt = declared_traits(model).rope, len(request.prompt)
    end = prompt + max(map(len, request.continuations), default=0)
    return rope is not None and end > rope.position and (rope.dynamic or prompt - 1 <= rope.position)


def _groups(requests: Sequence[ScoreRequest], max_tokens: int, max_prompts: int) -> Iterator[list[ScoreRequest]]:
    """Yield groups of at most ``max_prompts`` prompts and, unless it is 0, ``max_tokens`` tokens."""
    group: list[ScoreRequest] = []
    for request in requests:
        num_tokens = sum(len(each.prompt) for each in (*group, request))
        if group and (len(group) == max_prompts or (max_tokens and num_tokens > max_tokens)):
            yield group
            group = []
        group.append(request)
    if group:
        yield group
