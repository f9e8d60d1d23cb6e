"""A model whose output is forced to a recorded answer while its forwards really run. Knows nothing of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

SURE = 2.0**15
"""The logit of the recorded token: above any that a model has, and exact in every precision."""


class Follower:
    """Leads the argmax of every row of an unmodified model along a recorded answer, by a forward hook.

    The row at position p of the text gets the recorded token of position p + 1 as its largest logit, whoever asks and
    however many rows a forward has: the target-guided simulation of LLMA (Yang et al. 2023, section 4), for any
    decoder that reaches the model through its forward. All real compute still runs, and what is added is one token a
    row, in place. Past the end of the answer every row says ``end``.

    The hook stays where it is and its buffers stay in place while answers change, so that a compiled or captured
    forward that was made with it stays right. Leave it as a context manager.
    """

    def __init__(self, model: PreTrainedModel, *, end: int, longest: int) -> None:
        self._end = end
        self._answer = torch.full((longest + 1,), end, device=model.device)
        self._start = torch.zeros((), dtype=torch.long, device=model.device)
        self._hook = model.register_forward_hook(self._lead, with_kwargs=True)

    def follow(self, start: int, answer: Sequence[int]) -> None:
        """From now on the text is ``answer`` from position ``start`` on, which is the length of the prompt."""
        self._start.fill_(start)
        self._answer.fill_(self._end)
        self._answer[: len(answer)] = torch.tensor(list(answer), device=self._answer.device)

    def _lead(self, model: Any, args: Sequence[Any], arguments: Mapping[str, Any], output: Any) -> None:
        positions = arguments.get("position_ids")
        if positions is None or positions.dim() != 2:
            raise ValueError(
                f"A forward of {type(model).__name__} was not told the position of each token, and a replay goes by "
                "it; replay with a model that takes position_ids of shape (texts, tokens)."
            )
        rows = output.logits.shape[1]
        index = (positions[:, -rows:] + 1 - self._start).clamp(0, len(self._answer) - 1)
        output.logits.scatter_(-1, self._answer[index][..., None], SURE)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *failure: object) -> None:
        self._hook.remove()
