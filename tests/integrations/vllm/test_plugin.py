"""The replacements of vLLM's functions, without vLLM."""

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from antiphon.integrations.vllm import model_runner_v1, patching, plugin
from antiphon.integrations.vllm.admission import ADMITTED, SLICE_CHARACTERS
from tests.integrations.vllm.fake_engine import install_modules

VOCAB_SIZE = 300
SPECULATION = SimpleNamespace(method="custom_class", model="antiphon.integrations.vllm.Proposer")
MODEL = SimpleNamespace(get_vocab_size=lambda: VOCAB_SIZE)


class ValidationError(Exception):
    def __init__(self, message: str, *, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class SamplingParams:
    def __init__(self, **extra_args: Any) -> None:
        self.extra_args = extra_args

    def verify(
        self, model_config: Any, speculative_config: Any, structured_outputs_config: Any, tokenizer: Any
    ) -> None:
        """Accept everything."""


class ByteTokenizer:
    """Tokenizes bytes, and records the thread and the number of characters of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[threading.Thread, int]] = []
        self.wait: Callable[[], object] = lambda: None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        self.calls.append((threading.current_thread(), len(text)))
        self.wait()
        return list(text.encode())


class AsyncLLM:
    """Verifies a request inside the event loop, as vLLM's engine client does."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self.vllm_config = SimpleNamespace(speculative_config=SPECULATION, model_config=MODEL)
        self.input_processor = SimpleNamespace(tokenizer=tokenizer)

    async def add_request(self, request_id: str, prompt: Any, params: SamplingParams) -> SamplingParams:
        params.verify(MODEL, SPECULATION, None, self.input_processor.tokenizer)
        return params


def apply_sampling_constraints(logits: Any, cu_num_draft_tokens: Any, sampling_metadata: Any) -> Any:
    """Fail for logits of no rows, as vLLM's function does on CPUs."""
    logits.max()
    return logits + 1


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Modules with the names of vLLM that `register` patches, restored after the test."""

    class Parameters(SamplingParams):
        verify = SamplingParams.verify

    class Client(AsyncLLM):
        add_request = AsyncLLM.add_request

    modules: dict[str, dict[str, Any]] = {
        "vllm.sampling_params": {"SamplingParams": Parameters},
        "vllm.v1.engine.async_llm": {"AsyncLLM": Client},
        "vllm.exceptions": {"VLLMValidationError": ValidationError},
        "vllm.v1.sample.rejection_sampler": {"apply_sampling_constraints": apply_sampling_constraints},
    }
    sampler = install_modules(monkeypatch, modules)["vllm.v1.sample.rejection_sampler"]
    return SimpleNamespace(sampling_params=Parameters, async_llm=Client, sampler=sampler)


def verify(params: SamplingParams, tokenizer: Any = None, speculation: Any = SPECULATION) -> dict[str, Any]:
    params.verify(MODEL, speculation, None, tokenizer or ByteTokenizer())
    return params.extra_args


def test_verification_adds_token_ids_once(fake_vllm: SimpleNamespace) -> None:
    plugin.register()
    plugin.register()
    tokenizer, params = ByteTokenizer(), fake_vllm.sampling_params(references=["ab"], other=1)
    for _ in range(2):
        assert verify(params, tokenizer)[ADMITTED] == {"references": [[97, 98]], "prediction": []}
    assert len(tokenizer.calls) == 1
    params.extra_args["references"] = ["c"]
    assert verify(params, tokenizer)[ADMITTED]["references"] == [[99]], "other references are tokenized again"
    del params.extra_args["references"]
    assert verify(params, tokenizer) == {"other": 1}, "and nothing is left of references that are gone"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"references": [5, VOCAB_SIZE]}, "a token id outside the vocabulary: 300; the model's vocabulary size is 300"),
        ({"prediction": [2**64]}, "an integer of 65 bits"),
        ({ADMITTED: {"references": [[10**9]], "prediction": []}}, "'antiphon' is a reserved key"),
        ({ADMITTED: "a", "references": ["a"]}, "'antiphon' is a reserved key"),
    ],
)
def test_verification_rejects_what_would_fail_in_the_engine(
    fake_vllm: SimpleNamespace, arguments: dict[str, Any], message: str
) -> None:
    plugin.register()
    with pytest.raises(ValidationError, match=message) as caught:
        verify(fake_vllm.sampling_params(**arguments))
    assert caught.value.parameter == "vllm_xargs"
    engine = fake_vllm.async_llm(ByteTokenizer())
    with pytest.raises(ValidationError, match=message):
        asyncio.run(engine.add_request("a", "prompt", fake_vllm.sampling_params(**arguments)))


def test_engines_with_another_drafter_are_left_alone(fake_vllm: SimpleNamespace) -> None:
    plugin.register()
    arguments = {"references": [VOCAB_SIZE], ADMITTED: 1}
    for other in (
        None,
        SimpleNamespace(method="ngram"),
        SimpleNamespace(method="custom_class", model="collections.Counter"),
    ):
        assert verify(fake_vllm.sampling_params(**arguments), speculation=other) == arguments


def test_a_server_tokenizes_outside_of_its_event_loop_in_bounded_slices(fake_vllm: SimpleNamespace) -> None:
    """While the tokenizer is stuck in a large reference, the event loop goes on; nothing is tokenized twice."""
    plugin.register()
    tokenizer, is_released = ByteTokenizer(), threading.Event()
    tokenizer.wait = lambda: is_released.wait(30)
    engine, text = fake_vllm.async_llm(tokenizer), "word " * 10_000

    async def serve() -> dict[str, Any]:
        task = asyncio.create_task(
            engine.add_request("a", "prompt", params=fake_vllm.sampling_params(references=[text]))
        )
        while not tokenizer.calls:
            await asyncio.sleep(0.001)
        assert not task.done(), "the loop runs although the tokenizer has not returned"
        is_released.set()
        return dict((await task).extra_args)

    found = asyncio.run(serve())
    assert found[ADMITTED]["references"] == [list(text.encode())]
    threads, sizes = zip(*tokenizer.calls, strict=True)
    assert threading.current_thread() not in threads
    assert sum(sizes) == len(text)
    assert max(sizes) <= SLICE_CHARACTERS


def test_logits_without_rows_are_not_constrained(fake_vllm: SimpleNamespace) -> None:
    sampler = fake_vllm.sampler
    with pytest.raises(RuntimeError):
        sampler.apply_sampling_constraints(torch.zeros(0, 5), None, None)
    plugin.register()
    empty = torch.zeros(0, 5)
    assert sampler.apply_sampling_constraints(empty, None, None) is empty
    assert sampler.apply_sampling_constraints(torch.zeros(1, 2), None, sampling_metadata=None).tolist() == [[1, 1]]


def test_another_version_of_vllm_is_left_alone(
    fake_vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patching, "version", lambda name: "0.34.1")
    plugin.register()
    assert "reads no references: vLLM is version 0.34.1; install 0.32 or 0.33, or a newer Antiphon" in caplog.text
    arguments = {"references": ["ab"]}
    assert verify(fake_vllm.sampling_params(**arguments)) == arguments


@pytest.mark.parametrize(("value", "is_named"), [("1", True), ("0", False)])
def test_the_other_model_runner_is_named_if_the_user_requires_it(
    fake_vllm: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    value: str,
    is_named: bool,
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", value)
    plugin.register()
    assert ("drafts in Model Runner V1 only; set VLLM_USE_V2_MODEL_RUNNER=0." in caplog.text) is is_named


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_each_draft_token_gets_the_value_of_its_request(dtype: torch.dtype) -> None:
    """Three requests with two, no and three draft tokens; the last one is greedy, which vLLM writes as 0."""
    given = torch.tensor([3, 5, 0], dtype=dtype)
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = model_runner_v1.expand_batch_to_tokens(given, ends, 5, replace_from=0, replace_to=1)
    assert found.tolist() == [3, 3, 1, 1, 1]
    assert found.dtype == dtype
    assert model_runner_v1.expand_batch_to_tokens(given, ends, 5).tolist() == [3, 3, 0, 0, 0]
    assert given.tolist() == [3, 5, 0]
