"""Teacher forcing: make an unmodified model emit a recorded answer; it still computes every forward pass in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

FORCED_LOGIT = 2.0**15
"""Logit of the recorded token: above every logit of a real model, and exact in every precision."""


class TeacherForcing:
    """A forward hook that makes the recorded token the argmax of every row.

    The row at position p of the sequence gets the recorded token of position p + 1 as its largest logit, in every
    forward pass and for any number of rows: the target-guided simulation of LLMA (Yang et al. 2023, section 4), for
    any decoder that calls the model's forward. The added work is one in-place write per row. Rows past the end of the
    answer emit ``end``. The hook and its buffers stay in place when answers change, so a compiled or captured forward
    remains valid. Use as a context manager, which removes the hook at the end.

    Args:
        model: Model to force.
        end: End-of-sequence token id.
        longest: Maximum number of answer tokens.
    """

    def __init__(self, model: PreTrainedModel, *, end: int, longest: int) -> None:
        self._end = end
        self._answer = torch.full((longest + 1,), end, device=model.device)
        self._start = torch.zeros((), dtype=torch.long, device=model.device)
        self._hook = model.register_forward_hook(self._force, with_kwargs=True)

    def follow(self, start: int, answer: Sequence[int]) -> None:
        """Force the model to emit an answer.

        Args:
            start: Position of the first answer token, which is the length of the prompt.
            answer: Recorded answer in token ids.
        """
        self._start.fill_(start)
        self._answer.fill_(self._end)
        self._answer[: len(answer)] = torch.tensor(list(answer), device=self._answer.device)

    def _force(self, model: Any, args: Sequence[Any], arguments: Mapping[str, Any], output: Any) -> None:
        positions = arguments.get("position_ids")
        if positions is None or positions.dim() != 2:
            raise ValueError(
                f"A forward of {type(model).__name__} was not told the position of each token, and a replay goes by "
                "it; replay with a model that takes position_ids of shape (texts, tokens)."
            )
        rows = output.logits.shape[1]
        index = (positions[:, -rows:] + 1 - self._start).clamp(0, len(self._answer) - 1)
        output.logits.scatter_(-1, self._answer[index][..., None], FORCED_LOGIT)

    def __enter__(self) -> TeacherForcing:
        return self

    def __exit__(self, *failure: object) -> None:
        self._hook.remove()
