"""Choosing tokens, ending texts and observing steps, without a model."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList

from antiphon.accel.constraints.penalties import penalties
from antiphon.accel.decoding.step import StepRequest, forward_alone, observe
from antiphon.accel.decoding.tokens import Sampler, TokenHistory
from antiphon.accel.drafting.draft import EMPTY, ROOT, Accepted
from antiphon.accel.engines.torch.logits import TorchLogits


def history_of(*tokens: int) -> TokenHistory:
    return TokenHistory(torch.tensor([tokens]))


def test_an_infinite_score_is_taken_and_no_number_is_an_error_of_the_request() -> None:
    def infinite(_: Tensor, scores: Tensor) -> Tensor:
        return scores.index_fill(1, torch.tensor([2]), torch.inf)

    processors: Any = LogitsProcessorList([infinite])
    choose = Sampler(history_of(1), processors, sample=True).bind(TorchLogits(torch.zeros(1, 5)))
    assert [choose(ROOT) for _ in range(3)] == [2, 2, 2]
    broken = Sampler(history_of(1), LogitsProcessorList(), sample=True).bind(TorchLogits(torch.full((1, 5), torch.nan)))
    with pytest.raises(RuntimeError, match="probability tensor contains either `inf`, `nan`"):
        broken(ROOT)


def test_processors_do_not_change_the_logits_of_the_forward_pass() -> None:
    def in_place(_: Tensor, scores: Tensor) -> Tensor:
        return scores.fill_(-1.0)

    logits, processors = torch.arange(5.0)[None], LogitsProcessorList([in_place])
    Sampler(history_of(1), processors).bind(TorchLogits(logits))(ROOT)
    assert logits.tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0]], "drafters learn from them"


class Notes:
    """Records the calls of any method."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append(name)


@pytest.mark.parametrize(("num_rows", "is_shared", "is_timed"), [(4, False, True), (4, True, False), (0, False, False)])
def test_only_the_time_of_a_pass_for_one_request_teaches_its_budget(
    num_rows: int, is_shared: bool, is_timed: bool
) -> None:
    budget, drafter = Notes(), Notes()
    request: Any = SimpleNamespace(budget=budget, drafter=drafter, output=SimpleNamespace(finish=None))
    step = StepRequest(request, draft=EMPTY, num_rows=num_rows, is_shared=is_shared)
    logits: Any = None
    assert observe(step, Accepted((), (7,)), logits, 0.1).tokens == (7,)
    assert ("observe_time" in budget.calls) is is_timed
    assert "observe_accepted" in budget.calls
    assert drafter.calls == ["observe"]


@pytest.mark.parametrize(("error", "is_reset"), [(KeyboardInterrupt, True), (ValueError, False)])
def test_a_sequence_is_reset_after_an_interrupt_in_its_pass(error: type[BaseException], is_reset: bool) -> None:
    sequence = Notes()

    def forward(_: Any) -> Any:
        raise error

    engine: Any = SimpleNamespace(forward=forward)
    request: Any = SimpleNamespace()
    inputs: Any = SimpleNamespace(sequence=sequence)
    with pytest.raises(error):
        forward_alone(engine, StepRequest(request), inputs)
    assert sequence.calls == (["reset"] if is_reset else [])


def test_presence_counts_once_and_frequency_every_time_and_the_prompt_never() -> None:
    [processor] = penalties(1.0, 0.5, {3: 2.0}, prompt_tokens=2, vocab_size=5)
    scores: Any = processor(torch.tensor([[0, 1, 2, 2, 4]]), torch.zeros(1, 5))
    assert scores.tolist() == [[0.0, 0.0, -2.0, 2.0, -1.5]]
