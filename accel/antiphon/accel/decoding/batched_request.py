"""Splits a batch that `generate` prepared into one request per sequence, and merges their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import (
    EosTokenCriteria,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from antiphon.accel.decoding.generation import Generation
from antiphon.accel.decoding.request import Reference, Request

_ROW_BY_ROW = (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    MinPLogitsWarper,
    TypicalLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StopStringCriteria,
)
"""Processors and criteria whose result for a batch row does not depend on the index of the row."""


def split_batch(request: Request) -> list[Request]:
    """Return one request for each sequence of the batch, with its left padding and a new cache.

    Sequences of a batch end up with different lengths, so a processor cannot be called for all of them at once. Each
    sequence gets copies of its own. They are called with a batch in which every row is this sequence, because some of
    them use the index of the row.

    Raises:
        ValueError: A processor or criterion cannot be copied.
    """
    batch = request.input_ids.shape[0]
    if batch == 1:
        return [request]
    masks = request.arguments.get("attention_mask")
    return [
        replace(
            request,
            input_ids=request.input_ids[row : row + 1],
            processors=LogitsProcessorList(_copy_for_row(processor, row, batch) for processor in request.processors),
            criteria=StoppingCriteriaList(_copy_for_row(criterion, row, batch) for criterion in request.criteria),
            arguments={} if masks is None else {"attention_mask": masks[row : row + 1]},
        )
        for row in range(batch)
    ]


def references_per_sequence(references: Sequence[Any], request: Request) -> list[Sequence[Reference]]:
    """Return the references of each sequence.

    Args:
        references: One list of references for each prompt, or simply the references if there is one prompt.

    Raises:
        ValueError, TypeError: They are not one list for each prompt.
    """
    batch = request.input_ids.shape[0]
    copies = request.config.num_return_sequences or 1
    prompts = batch // copies
    if prompts == 1 or not references:
        return [references] * batch
    if len(references) != prompts:
        raise ValueError(
            f"references has {len(references)} entries for a batch of {prompts} texts; give one list of references "
            "for each text."
        )
    for index, own in enumerate(references):
        if isinstance(own, str) or not isinstance(own, Sequence) or any(isinstance(entry, int) for entry in own):
            raise TypeError(f"references[{index}] must be the list of references of text {index}; it is {own!r:.60}.")
    return [own for own in references for _ in range(copies)]


def merge_outputs(generations: Sequence[Generation]) -> Tensor | GenerateDecoderOnlyOutput:
    """Return what `generate` returns for a batch, without a cache; ended sequences are padded."""
    config = generations[0].request.config
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    padding = next((token for token in (config.pad_token_id, *ends) if token is not None), 0)
    length = max(len(generation.history.tokens) for generation in generations)
    ids = [generation.history.ids for generation in generations]
    sequences = torch.cat([pad(own, (0, length - own.shape[1]), value=padding) for own in ids])
    if not config.return_dict_in_generate:
        return sequences
    fields: dict[str, Any] = {
        "sequences": sequences,
        "scores": _stack_steps([generation.sampler.scores for generation in generations], padding),
        "logits": _stack_steps([generation.sampler.logits for generation in generations], padding),
    }
    return GenerateDecoderOnlyOutput(**fields)


def _stack_steps(kept: Sequence[list[Tensor] | None], padding: int) -> tuple[Tensor, ...] | None:
    """Return for each token position the scores of all sequences, shape (sequences, vocab)."""
    rows = [tensors for tensors in kept if tensors is not None]
    if not rows:
        return None
    ended = torch.full_like(rows[0][0], -torch.inf)  # after the end of a sequence only the pad token is possible
    ended[:, padding] = 0.0
    return tuple(torch.cat(step) for step in zip_longest(*rows, fillvalue=ended))


def _copy_for_row(part: Any, row: int, batch: int) -> Any:
    if type(part) in _ROW_BY_ROW:
        return part
    try:
        copy = deepcopy(part)
    except Exception as error:
        raise ValueError(
            f"{type(part).__name__} cannot be copied for each text of a batch ({error}); decode the texts one by one."
        ) from error
    return (_RowCriterion if isinstance(part, StoppingCriteria) else _RowProcessor)(copy, row, batch)


class _RowProcessor(LogitsProcessor):
    """Applies a logits processor of a batch to one row."""

    def __init__(self, processor: Any, row: int, batch: int) -> None:
        self.processor = processor
        self.row = row
        self.batch = batch

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        all_rows = self.processor(input_ids.repeat(self.batch, 1), scores.repeat(self.batch, 1))
        own: Tensor = all_rows[self.row : self.row + 1]
        return own


class _RowCriterion(StoppingCriteria):
    """Applies a stopping criterion of a batch to one row."""

    def __init__(self, criterion: Any, row: int, batch: int) -> None:
        self.criterion = criterion
        self.row = row
        self.batch = batch

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Any:
        scores = None if scores is None else tuple(score.repeat(self.batch, 1) for score in scores)
        ended = torch.as_tensor(self.criterion(input_ids.repeat(self.batch, 1), scores, **options))
        return ended.expand(self.batch)[self.row : self.row + 1]
