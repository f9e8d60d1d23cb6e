"""The connection with Model Runner V2: when it is used, what it patches, and what it refuses. Without vLLM."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.integrations.vllm import model_runner_v2, patching
from antiphon.integrations.vllm.admission import Sources
from antiphon.integrations.vllm.model_runner_v1 import patch_worker
from tests.integrations.vllm.fake_engine import RequestStates, install_modules, sampling_params

OURS = SimpleNamespace(method="custom_class", model="antiphon.integrations.vllm.Proposer", num_speculative_tokens=6)
NGRAM = SimpleNamespace(method="ngram", model="ngram", num_speculative_tokens=6)
ANSWER = list(range(20, 40))


class Group:
    """A tensor-parallel group that records what is broadcast."""

    def __init__(self, rank: int = 0) -> None:
        self.rank_in_group, self.sent = rank, list[Any]()

    def broadcast(self, tensor: Any, src: int = 0) -> None:
        self.sent.append((tensor, src))


def fake_types() -> tuple[type, type, type]:
    """Return new classes with the fields of ``InputBatch``, ``NewRequestData`` and ``BaseSpeculator``."""

    @dataclass
    class InputBatch:
        req_ids: Any
        idx_mapping: Any
        num_scheduled_tokens: Any

    @dataclass
    class NewRequestData:
        req_id: str
        sampling_params: Any
        prefill_token_ids: Any

        @property
        def prompt_len(self) -> int:
            return 2

    class BaseSpeculator(ABC):
        num_query_per_req = 1

        @abstractmethod
        def init_cudagraph_manager(self, cudagraph_mode: Any) -> None: ...

        @abstractmethod
        def capture(self) -> None: ...

        @abstractmethod
        def propose(
            self, input_batch: Any, attn_metadata: Any, num_sampled: Any, num_rejected: Any, *, dummy_run: bool = False
        ) -> Any: ...

    return InputBatch, NewRequestData, BaseSpeculator


def fake_interfaces() -> dict[str, dict[str, Any]]:
    """Return modules of vLLM 0.33, each with the names that the connection uses; new classes in each call."""
    input_batch, new_request_data, base_speculator = fake_types()

    class GPUModelRunner:
        def __init__(self, speculator: Any) -> None:
            self.speculator, self.added = speculator, list[Any]()
            self.taken: Any = None

        def add_requests(self, scheduler_output: Any) -> None:
            self.added += scheduler_output.scheduled_new_reqs

        def take_draft_token_ids(self) -> Any:
            return self.taken

    class VllmConfig:
        def __init__(self, speculative_config: Any) -> None:
            self.speculative_config, self.use_v2_model_runner = speculative_config, True
            self.model_config = SimpleNamespace(get_vocab_size=lambda: 100)
            self.scheduler_config = SimpleNamespace(async_scheduling=False)

        def _get_v2_model_runner_unsupported_features(self) -> list[str]:
            method = self.speculative_config.method
            return ["dual batch overlap", *([f"speculative method '{method}'"] if method != "eagle" else [])]

    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> str:
        return "vLLM's own"

    group = Group()
    return {
        "vllm.config.vllm": {"VllmConfig": VllmConfig},
        "vllm.envs": {"VLLM_USE_V2_MODEL_RUNNER": None},
        "vllm.distributed.parallel_state": {"get_tp_group": lambda: group},
        "vllm.v1.core.sched.output": {"NewRequestData": new_request_data},
        "vllm.v1.worker.gpu.input_batch": {"InputBatch": input_batch},
        "vllm.v1.worker.gpu.model_runner": {"GPUModelRunner": GPUModelRunner, "init_speculator": init_speculator},
        "vllm.v1.worker.gpu.spec_decode": {"init_speculator": init_speculator},
        "vllm.v1.worker.gpu.spec_decode.speculator": {"BaseSpeculator": base_speculator},
    }


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The fake modules, by name, while a test runs."""
    return install_modules(monkeypatch, fake_interfaces())


def unsupported(vllm: dict[str, ModuleType], speculation: Any = OURS) -> list[str]:
    config = vllm["vllm.config.vllm"].VllmConfig(speculation)
    found: list[str] = config._get_v2_model_runner_unsupported_features()
    return found


def make(vllm: dict[str, ModuleType], **states: Any) -> tuple[Any, RequestStates]:
    """Return the model runner with a speculator, and its buffers."""
    model_runner_v2.register_model_runner_v2()
    buffers = RequestStates(4, OURS.num_speculative_tokens)
    vars(buffers).update(states)
    runner = vllm["vllm.v1.worker.gpu.model_runner"]
    speculator = runner.init_speculator(vllm["vllm.config.vllm"].VllmConfig(OURS), "cpu", buffers)
    return runner.GPUModelRunner(speculator), buffers


def join(vllm: dict[str, ModuleType], runner: Any, states: RequestStates, name: str, sources: Sources) -> None:
    """Add a request whose prompt is 7 8 and which has emitted the first token of `ANSWER`."""
    new = vllm["vllm.v1.core.sched.output"].NewRequestData(name, sampling_params(sources), [7, 8])
    states.req_id_to_index[name] = states.free.pop()
    runner.add_requests(SimpleNamespace(scheduled_new_reqs=[new]))
    states.write(name, [7, 8, ANSWER[0]])


def propose(runner: Any, states: RequestStates, names: list[str], emitted: list[int], **options: Any) -> Any:
    slots = torch.tensor([states.req_id_to_index[name] for name in names])
    batch = SimpleNamespace(req_ids=names, idx_mapping=slots, num_scheduled_tokens=np.ones(len(names)))
    return runner.speculator.propose(batch, None, torch.tensor(emitted), None, **options)


def test_v1_is_used_unless_the_user_requires_v2(vllm: dict[str, ModuleType]) -> None:
    model_runner_v2.register_model_runner_v2()
    method = "speculative method 'custom_class'"
    assert unsupported(vllm) == ["dual batch overlap", method]
    vllm["vllm.envs"].VLLM_USE_V2_MODEL_RUNNER = True  # type: ignore[attr-defined]
    assert unsupported(vllm) == ["dual batch overlap"]
    vllm["vllm.envs"].VLLM_USE_V2_MODEL_RUNNER = False  # type: ignore[attr-defined]
    assert unsupported(vllm) == ["dual batch overlap", method]


def test_other_drafters_stay_vllms_own(vllm: dict[str, ModuleType]) -> None:
    model_runner_v2.register_model_runner_v2()
    for module in ("vllm.v1.worker.gpu.model_runner", "vllm.v1.worker.gpu.spec_decode"):
        config = vllm["vllm.config.vllm"].VllmConfig(NGRAM)
        assert vllm[module].init_speculator(config, "cpu", req_states=None) == "vLLM's own"


def test_drafts_have_different_lengths_and_prefill_has_none(vllm: dict[str, ModuleType]) -> None:
    runner, states = make(vllm)
    join(vllm, runner, states, "short", Sources((tuple(ANSWER[:3]),)))
    join(vllm, runner, states, "prefill", Sources((tuple(ANSWER),)))
    join(vllm, runner, states, "long", Sources((tuple(ANSWER),)))
    assert [new.req_id for new in runner.added] == ["short", "prefill", "long"], "vLLM's own function runs, too"
    names = ["long", "prefill", "short"]
    drafts = propose(runner, states, names, [1, 0, 1])
    assert drafts.tolist() == [ANSWER[1:7], [0] * 6, [*ANSWER[1:3], 0, 0, 0, 0]]
    assert drafts.dtype == torch.int64
    runner.taken = SimpleNamespace(req_ids=names, draft_token_ids=[[-1] * 6 for _ in names])
    assert runner.take_draft_token_ids().draft_token_ids == [[-1] * 6, [], [-1] * 2]
    runner.taken = None
    assert runner.take_draft_token_ids() is None


def test_the_first_rank_shares_its_drafts_with_the_others(vllm: dict[str, ModuleType]) -> None:
    """Every rank verifies a tensor of drafts, but each rank would measure other step times."""
    group = vllm["vllm.distributed.parallel_state"].get_tp_group()
    runner, states = make(vllm)
    join(vllm, runner, states, "a", Sources((tuple(ANSWER),)))
    drafts = propose(runner, states, ["a"], [1])
    assert [each.tolist() for each, _ in group.sent] == [[ANSWER[1:7]]]
    group.rank_in_group = 1
    group.broadcast = lambda tensor: tensor.copy_(drafts)
    other, other_states = make(vllm)
    join(vllm, other, other_states, "a", Sources((tuple(ANSWER),)))
    assert propose(other, other_states, ["a"], [1]).tolist() == drafts.tolist()
    assert other.speculator.drafter is None


def test_a_failure_gives_empty_drafts(vllm: dict[str, ModuleType], caplog: pytest.LogCaptureFixture) -> None:
    runner, states = make(vllm)
    join(vllm, runner, states, "a", Sources((tuple(ANSWER),)))
    with caplog.at_level(logging.ERROR, logger="vllm.antiphon"):
        runner.add_requests(SimpleNamespace(scheduled_new_reqs=[]))
        batch = SimpleNamespace(req_ids=["a"])  # as a later version of vLLM might
        drafts = runner.speculator.propose(batch, None, torch.tensor([1]), None)
    assert drafts.tolist() == [[0] * 6]
    runner.taken = SimpleNamespace(req_ids=["a"], draft_token_ids=[[-1] * 6])
    assert runner.take_draft_token_ids().draft_token_ids == [[]]
    assert runner.speculator.drafter.failures == 1
    assert "drafting failed" in caplog.text


def test_asynchronous_scheduling_is_refused(vllm: dict[str, ModuleType]) -> None:
    model_runner_v2.register_model_runner_v2()
    config = vllm["vllm.config.vllm"].VllmConfig(OURS)
    config.scheduler_config.async_scheduling = True
    with pytest.raises(ValueError, match="start vLLM with --no-async-scheduling"):
        model_runner_v2.make_speculator(config, RequestStates(4, 6))


def test_the_log_says_which_model_runner_drafts(
    vllm: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="vllm.antiphon"):
        make(vllm)
    assert "up to 6 tokens a step, in Model Runner V2 of vLLM 0.33.0" in caplog.text
    monkeypatch.setattr(patching, "version", lambda name: "0.31.0")
    patch_worker(SimpleNamespace(speculative_config=OURS, use_v2_model_runner=False))
    assert "drafts nothing: vLLM is version 0.31.0; install 0.32 or 0.33" in caplog.text
