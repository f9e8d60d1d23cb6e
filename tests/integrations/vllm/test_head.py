"""References together with the model's own head: which of the two drafts, and what the connection refuses. No vLLM."""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.integrations.vllm import head_runner
from antiphon.integrations.vllm.admission import Sources
from antiphon.integrations.vllm.batch import HEAD_TOKENS, reads_references
from antiphon.integrations.vllm.head_proposer import HeadProposer
from tests.integrations.vllm.fake_engine import Engine, Request, install_modules, sampling_params

Head = Callable[[Request], list[int]]
"""Returns the tokens that a head drafts for a request."""

MOST, FROM_HEAD, VOCAB_SIZE = 8, 3, 100_000
ANSWER = random.Random(0).sample(range(1000, VOCAB_SIZE), 60)
WRONG = 7


def make_config(**changes: Any) -> SimpleNamespace:
    speculation = {"method": "eagle", "num_speculative_tokens": MOST, "disable_padded_drafter_batch": True}
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**speculation | changes),
        model_config=SimpleNamespace(get_vocab_size=lambda: VOCAB_SIZE),
        parallel_config=SimpleNamespace(world_size=1, data_parallel_size=1),
        use_v2_model_runner=False,
    )


class Clock:
    """A simulated clock, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_proposer() -> HeadProposer:
    return HeadProposer(make_config(), FROM_HEAD, patch=lambda _: None, clock=Clock())


def perfect(request: Request) -> list[int]:
    return (request.answer[request.emitted :] + [WRONG] * FROM_HEAD)[:FROM_HEAD]


def wrong(request: Request) -> list[int]:
    return [WRONG] * FROM_HEAD


def right_twice(request: Request) -> list[int]:
    return [*perfect(request)[:2], WRONG]


class HeadEngine(Engine):
    """Runs requests as Model Runner V1 does with a head, and counts the steps in which it drafts.

    A step takes a second, and a twentieth for each row.
    """

    proposer: HeadProposer

    def __init__(self, proposer: HeadProposer, head: Head) -> None:
        super().__init__(proposer)
        self.head, self.head_steps = head, 0
        self.input_batch.num_tokens_no_spec, self.input_batch.token_ids_cpu = self.counts, self.ids

    def _propose(self, sampled: list[list[int]], scheduled: dict[str, int]) -> list[list[int]]:
        self.fill_batch()
        assert isinstance(self.proposer._clock, Clock)
        self.proposer._clock.now += 1 + sum(scheduled.values()) / 20
        is_wanted = self.proposer.begin_step(self, scheduled, sampled)
        self.head_steps += is_wanted
        return self.proposer.end_step([self.head(request) if is_wanted else [] for request in self.running])


def run(request: Request, head: Head, proposer: HeadProposer | None = None) -> HeadEngine:
    engine = HeadEngine(proposer or make_proposer(), head)
    engine.add(request)
    engine.run()
    return engine


def test_references_and_the_head_together_need_fewer_steps_than_each_alone() -> None:
    """Half of the answer is in a reference."""
    half = Sources((ANSWER[:30],))
    both, reference = (Request("a", [7, 8], ANSWER, half) for _ in range(2))
    head = Request("a", [7, 8], ANSWER)
    run(both, right_twice)
    run(head, right_twice)
    run(reference, wrong)
    assert both.steps < 0.75 * min(head.steps, reference.steps), (both.steps, head.steps, reference.steps)


def test_tokens_of_a_head_that_is_always_wrong_are_no_longer_verified() -> None:
    """A new request starts with the estimate of all earlier ones."""
    proposer = make_proposer()
    first, second = Request("a", [7, 8], ANSWER), Request("b", [7, 8], ANSWER)
    run(first, wrong, proposer)
    run(second, wrong, proposer)
    assert sum(map(len, first.drafts[:5])) > 5
    assert sum(map(len, first.drafts[40:])) < 10
    assert sum(map(len, second.drafts)) < 10


def test_the_heads_tokens_are_returned_unchanged_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    engine = HeadEngine(make_proposer(), perfect)
    request = Request("a", [7, 8], ANSWER)
    engine.add(request)
    engine.input_batch.token_ids_cpu = None  # as a later version of vLLM might
    with caplog.at_level(logging.ERROR, logger="vllm.antiphon"):
        engine.run()
    assert request.drafts[0] == ANSWER[1 : 1 + FROM_HEAD]
    assert request.steps <= 2 + len(ANSWER) // (1 + FROM_HEAD)
    assert "drafting failed" in caplog.text


def test_the_state_of_ended_requests_is_dropped() -> None:
    proposer = make_proposer()
    run(Request("a", [7, 8], ANSWER), perfect, proposer)
    run(Request("b", [7, 8], ANSWER), perfect, proposer)
    assert len(proposer._heads) == 1, "the last request is dropped in the next step"


@dataclass
class SchedulerOutput:
    num_scheduled_tokens: Any
    num_spec_tokens_to_schedule: int = MOST


class EagleProposer:
    """Stands for vLLM's class of this name on a CPU: the lengths on the host and on the device are one tensor."""

    def prepare_inputs(self, lengths: list[int]) -> tuple[Any, str]:
        tensor = torch.tensor(lengths)
        return SimpleNamespace(seq_lens=tensor, seq_lens_cpu_upper_bound=tensor), "indices"


class Runner:
    """A model runner of one request, whose head drafts as many tokens as the scheduler's output says."""

    def __init__(self) -> None:
        self.drafter = EagleProposer()
        self.requests = {"a": SimpleNamespace(sampling_params=sampling_params(Sources((ANSWER,))))}
        self.input_batch = SimpleNamespace(req_ids=["a"], num_prompt_tokens=np.array([1]))
        self.input_batch.num_tokens_no_spec = np.array([3])
        self.input_batch.token_ids_cpu = np.array([[5, *ANSWER[:2]]])
        self.asked: list[int] = []

    def propose_draft_token_ids(self, scheduler_output: Any, sampled_token_ids: Any, hidden_states: Any) -> Any:
        self.asked.append(scheduler_output.num_spec_tokens_to_schedule)
        return torch.full((len(sampled_token_ids), self.asked[-1]), WRONG)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules with the names of vLLM's that the connection uses, and the opt-in."""
    monkeypatch.setenv(HEAD_TOKENS, str(FROM_HEAD))

    class WorkerWrapperBase:
        def init_device(self) -> None:
            self.worker = SimpleNamespace(model_runner=Runner())

    names: dict[str, dict[str, Any]] = {
        "vllm.v1.core.sched.output": {"SchedulerOutput": SchedulerOutput},
        "vllm.v1.worker.worker_base": {"WorkerWrapperBase": WorkerWrapperBase},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: False)},
    }
    install_modules(monkeypatch, names)
    return {"worker": WorkerWrapperBase}


def start(vllm: dict[str, Any], config: Any = None) -> Runner:
    """Return the model runner of a worker that has started."""
    head_runner.register_head()
    worker = vllm["worker"]()
    worker.vllm_config = config or make_config()
    worker.init_device()
    runner: Runner = worker.worker.model_runner
    return runner


def propose(runner: Runner) -> list[list[int]]:
    given = SchedulerOutput({"a": 1})
    drafts: list[list[int]] = runner.propose_draft_token_ids(given, [[ANSWER[1]]], hidden_states=None)
    assert given == SchedulerOutput({"a": 1}), "vLLM's own object is not changed"
    return drafts


def test_a_worker_drafts_from_references_and_the_head_only_computes_its_kv_cache(
    vllm: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="vllm.antiphon"):
        runner = start(vllm)
    assert "combines references with the model's own head (eagle): up to 8 tokens a step" in caplog.text
    assert propose(runner) == [ANSWER[2 : 2 + MOST]]
    assert runner.asked == [0]
    runner.requests["a"] = SimpleNamespace(sampling_params=sampling_params(Sources()))
    assert propose(runner)[0][:1] == [WRONG]
    assert runner.asked == [0, FROM_HEAD]


def test_workers_that_share_the_computation_run_the_head_equally_often(
    vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config()
    config.parallel_config.world_size = 2
    first = start(vllm, config)
    assert propose(first) == [ANSWER[2 : 2 + MOST]]
    monkeypatch.setattr(head_runner, "is_first_rank", lambda: False)
    second = start(vllm, config)
    assert propose(second) == [[WRONG] * FROM_HEAD]
    assert first.asked == second.asked == [FROM_HEAD]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"disable_padded_drafter_batch": False}, 'add "disable_padded_drafter_batch": true to --speculative-config'),
        ({"draft_sample_method": "probabilistic"}, "the head has to draft greedily"),
        ({"num_speculative_tokens": 2}, "ANTIPHON_HEAD_TOKENS is 3 and num_speculative_tokens is 2"),
    ],
)
def test_settings_that_cannot_be_combined_are_named_at_the_start(
    vllm: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        start(vllm, make_config(**changes))


def test_nothing_changes_without_the_opt_in(vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert reads_references(make_config().speculative_config)
    assert not reads_references(make_config(method="ngram").speculative_config)
    monkeypatch.delenv(HEAD_TOKENS)
    assert not reads_references(make_config().speculative_config)
    runner = start(vllm)
    assert propose_is_vllms_own(runner)


def propose_is_vllms_own(runner: Runner) -> bool:
    return "propose_draft_token_ids" not in vars(runner)
