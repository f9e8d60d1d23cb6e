"""Teacher forcing: make an unmodified model emit a recorded answer; it still computes every forward pass in full.

On torch this is a hook of the model, on OpenVINO a change of the logits that a forward pass returns. OpenVINO GenAI
gets the answer in its graph, see `forced_methods.write_answer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from antiphon.accel.drafting.draft import Logits
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.openvino.graph import SequenceRows
from antiphon.accel.engines.openvino.lm_head import HeadLogits, PassLogits
from antiphon.accel.engines.torch.logits import TorchLogits

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


class EngineForcing:
    """Makes the recorded token the argmax of every row that an OpenVINO engine returns, see `TeacherForcing`.

    Use as a context manager, which removes the change at the end.

    Args:
        engine: The engine. Its costs and bigrams need to be known already, because they would be falsified.
        end: End-of-sequence token id.
    """

    def __init__(self, engine: OpenVINOEngine, *, end: int) -> None:
        self._graph, self._run = engine.graph, engine.graph.run
        self._end = end
        self._start, self._answer = 0, np.array([end])
        self._graph.run = self._run_forced  # type: ignore[method-assign]

    def follow(self, start: int, answer: Sequence[int]) -> None:
        """Force the engine to emit an answer; the arguments are those of `TeacherForcing.follow`."""
        self._start, self._answer = start, np.array([*answer, self._end])

    def _run_forced(self, sequences: Sequence[SequenceRows], **options: bool) -> list[Logits]:
        return [
            self._forced(logits, rows.positions[len(rows.positions) - rows.num_logits :])
            for logits, rows in zip(self._run(sequences, **options), sequences, strict=True)
        ]

    def _forced(self, logits: Logits, positions: NDArray[np.int64]) -> Logits:
        tokens = self._answer[(positions + 1 - self._start).clip(0, len(self._answer) - 1)]
        if isinstance(logits, HeadLogits):
            return ForcedLogits(logits.source, logits.rows, tokens)
        logits.tensor()[torch.arange(len(tokens)), torch.from_numpy(tokens)] = FORCED_LOGIT
        return logits

    def __enter__(self) -> EngineForcing:
        return self

    def __exit__(self, *failure: object) -> None:
        del self._graph.run


class ForcedLogits(HeadLogits):
    """The logits of an OpenVINO engine's head with a recorded token as the argmax of each row; the work stays the same.

    Args:
        tokens: The recorded token after each row, shape (rows,).
    """

    def __init__(self, source: PassLogits, rows: range, tokens: NDArray[np.int64]) -> None:
        super().__init__(source, rows)
        self._tokens = tokens

    def argmax(self, row: int) -> int:
        """Find the model's token, and return the recorded one."""
        super().argmax(row)
        return int(self._tokens[row + 1])

    def top_k(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """See `Logits.top_k`."""
        known, places = self.source.known(), [self.rows[row + 1] for row in rows]
        if isinstance(known, np.ndarray):
            logits = known[places]
        else:
            logits = known.products[places] * known.scales[places, None].astype(np.float32)
        logits[np.arange(len(places)), self._tokens[[row + 1 for row in rows]]] = FORCED_LOGIT
        return TorchLogits(torch.from_numpy(logits)).top_k(range(-1, len(places) - 1), k)

    def head(self, rows: int) -> ForcedLogits:
        """See `Logits.head`."""
        return ForcedLogits(self.source, self.rows[: 1 + rows], self._tokens[: 1 + rows])

    def tensor(self) -> torch.Tensor:
        """See `Logits.tensor`."""
        logits = super().tensor().clone()
        logits[torch.arange(len(logits)), torch.from_numpy(self._tokens)] = FORCED_LOGIT
        return logits
