"""A batch as `generate` prepared it, text by text: each with processors and criteria of its own. Decodes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
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

from antiphon.accel.decoding.request import Reference, Request

# These treat every row of a batch alike, and some are costly; whatever else there is may depend on its place in it.
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


def split(request: Request) -> list[Request]:
    """One request for each sequence of the batch, left padding included, all with fresh caches.

    Texts of a batch end up with different lengths, so a processor cannot be asked for all of them at once. Each text
    gets copies of its own, which see a batch filled with this text, as some depend on their place in it.

    Raises:
        ValueError: a processor or criterion cannot be copied.
    """
    batch = request.input_ids.shape[0]
    if batch == 1:
        return [request]
    masks = request.arguments.get("attention_mask")
    return [
        replace(
            request,
            input_ids=request.input_ids[row : row + 1],
            processors=LogitsProcessorList(_own(processor, row, batch) for processor in request.processors),
            criteria=StoppingCriteriaList(_own(criterion, row, batch) for criterion in request.criteria),
            arguments={} if masks is None else {"attention_mask": masks[row : row + 1]},
        )
        for row in range(batch)
    ]


def share_out(references: Sequence[Any], request: Request) -> list[Sequence[Reference]]:
    """The references of each sequence: one list for each prompt, or simply the references where there is one prompt.

    Raises:
        ValueError, TypeError: they are not one list for each prompt.
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


def _own(part: Any, row: int, batch: int) -> Any:
    if type(part) in _ROW_BY_ROW:
        return part
    try:
        copy = deepcopy(part)
    except Exception as error:
        raise ValueError(
            f"{type(part).__name__} cannot be copied for each text of a batch ({error}); decode the texts one by one."
        ) from error
    return (_CriterionOf if isinstance(part, StoppingCriteria) else _ProcessorOf)(copy, row, batch)


class _ProcessorOf(LogitsProcessor):
    """A processor of a whole batch, asked for one of its texts."""

    def __init__(self, processor: Any, row: int, batch: int) -> None:
        self.processor = processor
        self.row = row
        self.batch = batch

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        everywhere = self.processor(input_ids.repeat(self.batch, 1), scores.repeat(self.batch, 1))
        chosen: Tensor = everywhere[self.row : self.row + 1]
        return chosen


class _CriterionOf(StoppingCriteria):
    """A stopping criterion of a whole batch, asked for one of its texts."""

    def __init__(self, criterion: Any, row: int, batch: int) -> None:
        self.criterion = criterion
        self.row = row
        self.batch = batch

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Any:
        scores = None if scores is None else tuple(score.repeat(self.batch, 1) for score in scores)
        ended = torch.as_tensor(self.criterion(input_ids.repeat(self.batch, 1), scores, **options))
        return ended.expand(self.batch)[self.row : self.row + 1]
