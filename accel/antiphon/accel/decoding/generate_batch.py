"""Split a batch of transformers' `generate` into one request per sequence, and merge the results."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import zip_longest
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import pad
from transformers.generation.utils import GenerateDecoderOnlyOutput

from antiphon.accel.decoding.generate_arguments import Reference, check_supported
from antiphon.accel.decoding.model_request import ModelRequest
from antiphon.accel.decoding.options import DecodingOptions

_ROW_BY_ROW = (
    transformers.TemperatureLogitsWarper,
    transformers.TopKLogitsWarper,
    transformers.TopPLogitsWarper,
    transformers.MinPLogitsWarper,
    transformers.TypicalLogitsWarper,
    transformers.NoRepeatNGramLogitsProcessor,
    transformers.EosTokenCriteria,
    transformers.MaxLengthCriteria,
    transformers.MaxTimeCriteria,
    transformers.StopStringCriteria,
)
"""Processors and criteria whose result for a batch row does not depend on the index of the row."""


def requests_of_batch(
    model: transformers.PreTrainedModel,
    input_ids: Tensor,
    logits_processor: transformers.LogitsProcessorList,
    stopping_criteria: transformers.StoppingCriteriaList,
    generation_config: transformers.GenerationConfig,
    *,
    references: Sequence[Any] = (),
    tokenizer: transformers.PreTrainedTokenizerBase | None = None,
    options: DecodingOptions | None = None,
    is_cache_given: bool = False,
    **arguments: Any,
) -> list[ModelRequest]:
    """Return one request for each sequence of a batch; the arguments are as for `ModelRequest`.

    The sequences have different lengths after a few steps, so a logits processor cannot be called for all of them at
    once. Each request gets its own copies of processors and criteria, its left padding and a new cache. A processor
    is called with a batch in which every row is the request's sequence, because some processors use the index of the
    row.

    Args:
        references: One list of references for each prompt; a single list if there is one prompt.

    Raises:
        ValueError, TypeError: As for `ModelRequest`; or a processor or criterion cannot be copied;
            or ``references`` is not one list per prompt.
    """
    check_supported(model, input_ids, generation_config, arguments)
    batch = input_ids.shape[0]
    by_row = _references_by_row(references, batch, generation_config.num_return_sequences or 1)
    common: dict[str, Any] = {"tokenizer": tokenizer, "options": options}
    if batch == 1:
        common |= {"references": by_row[0], "is_cache_given": is_cache_given} | arguments
        return [ModelRequest(model, input_ids, logits_processor, stopping_criteria, generation_config, **common)]
    masks = arguments.get("attention_mask")
    return [
        ModelRequest(
            model,
            input_ids[row : row + 1],
            transformers.LogitsProcessorList(_copy_for_row(processor, row, batch) for processor in logits_processor),
            transformers.StoppingCriteriaList(_copy_for_row(criterion, row, batch) for criterion in stopping_criteria),
            generation_config,
            references=by_row[row],
            attention_mask=None if masks is None else masks[row : row + 1],
            **common,
        )
        for row in range(batch)
    ]


def _references_by_row(references: Sequence[Any], batch: int, copies: int) -> list[Sequence[Reference]]:
    """Return the references of each row of a batch with ``copies`` rows per prompt."""
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


def merge_results(requests: Sequence[ModelRequest]) -> Tensor | GenerateDecoderOnlyOutput:
    """Return the output of `generate` for a batch, without a cache. Shorter sequences are padded."""
    config = requests[0].config
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    padding = next((token for token in (config.pad_token_id, *ends) if token is not None), 0)
    length = max(len(request.history.tokens) for request in requests)
    ids = [request.history.ids for request in requests]
    sequences = torch.cat([pad(own, (0, length - own.shape[1]), value=padding) for own in ids])
    if not config.return_dict_in_generate:
        return sequences
    fields: dict[str, Any] = {
        "sequences": sequences,
        "scores": _stack_steps([request.sampler.scores for request in requests], padding),
        "logits": _stack_steps([request.sampler.logits for request in requests], padding),
    }
    return GenerateDecoderOnlyOutput(**fields)


def _stack_steps(kept: Sequence[list[Tensor] | None], padding: int) -> tuple[Tensor, ...] | None:
    """Return, for each token position, the scores of all sequences, shape (sequences, vocab)."""
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
    return (_RowCriterion if isinstance(part, transformers.StoppingCriteria) else _RowProcessor)(copy, row, batch)


class _RowProcessor(transformers.LogitsProcessor):
    """Applies a logits processor of a batch to one row."""

    def __init__(self, processor: Any, row: int, batch: int) -> None:
        self.processor = processor
        self.row = row
        self.batch = batch

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        all_rows = self.processor(input_ids.repeat(self.batch, 1), scores.repeat(self.batch, 1))
        own: Tensor = all_rows[self.row : self.row + 1]
        return own


class _RowCriterion(transformers.StoppingCriteria):
    """Applies a stopping criterion of a batch to one row."""

    def __init__(self, criterion: Any, row: int, batch: int) -> None:
        self.criterion = criterion
        self.row = row
        self.batch = batch

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Any:
        scores = None if scores is None else tuple(score.repeat(self.batch, 1) for score in scores)
        ended = torch.as_tensor(self.criterion(input_ids.repeat(self.batch, 1), scores, **options))
        return ended.expand(self.batch)[self.row : self.row + 1]
