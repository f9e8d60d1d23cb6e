"""One engine per model: it changes nothing that others can see, and leaves no tensors behind."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, get_ident
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.accel import LanguageModel
from antiphon.accel.engines.selection import EngineName
from antiphon.accel.engines.torch.attention import implementation_of
from antiphon.accel.generate import generate, stream
from tests.accel.batches import steps_together
from tests.table_part import part
from tests.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow

PROMPTS = [f"Question {number}: what do bees do? " * (1 + number % 3) for number in range(8)]
SETTINGS: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}


def ids(text: str) -> torch.Tensor:
    tokens: torch.Tensor = byte_tokenizer()(text, return_tensors="pt").input_ids
    return tokens


def plain(model: Any, prompt: torch.Tensor) -> list[int]:
    text: list[int] = model.generate(prompt, **SETTINGS)[0].tolist()
    return text


@contextmanager
def meeting(model: Any) -> Iterator[None]:
    """Make the first two forward passes overlap if no lock prevents it; the first one to start finishes first."""
    inside, left = Event(), Event()
    order: list[int] = []

    def enter(*given: Any) -> None:
        thread = get_ident()
        if thread not in order and len(order) < 2:
            order.append(thread)
            if len(order) == 1:
                inside.wait(1)
            else:
                inside.set()
                left.wait(1)

    def leave(*given: Any) -> None:
        if order and get_ident() == order[0] and inside.is_set():
            sleep(0.05)

    def gone(*given: Any) -> None:
        if len(order) == 2 and get_ident() == order[0]:
            left.set()

    hooks = (
        model.register_forward_pre_hook(enter),
        model.register_forward_hook(leave),
        model.get_output_embeddings().register_forward_pre_hook(gone),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def test_both_interfaces_to_one_model_leave_its_attention_unchanged() -> None:
    model = tiny_model(seed=21)
    before, expected = implementation_of(model), plain(model, ids(PROMPTS[0]))
    list(stream(model, ids(PROMPTS[0]), **SETTINGS))  # self-tests run once per model
    texts: list[list[int]] = []

    def decode() -> None:
        texts.append(
            [token for step in stream(model, ids(PROMPTS[0]), num_draft_tokens=4, **SETTINGS) for token in step.tokens]
        )

    for _ in range(4):
        with meeting(model):
            threads = [Thread(target=decode) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
    assert implementation_of(model) == before
    assert texts == [expected[ids(PROMPTS[0]).shape[1] :]] * 8


def test_a_callers_forward_pass_keeps_its_attention_during_one_of_ours() -> None:
    model: Any = tiny_model(seed=23)
    model.to(torch.bfloat16)  # packed attention also runs plain steps in this precision
    prompt = ids(PROMPTS[1])
    with torch.no_grad():
        expected = model(prompt).logits
    list(stream(model, prompt, **SETTINGS))
    found: list[torch.Tensor] = []

    def own() -> None:
        with torch.no_grad():
            found.append(model(prompt).logits)

    def meanwhile(*given: Any) -> None:
        if not found and given and not isinstance(given[0], Thread):
            found.append(expected)  # start only one other thread, and none from inside of it
            thread = Thread(target=own)
            thread.start()
            thread.join()

    hook = model.model.layers[0].register_forward_pre_hook(meanwhile)
    try:
        next(stream(model, prompt, num_draft_tokens=4, **SETTINGS))
    finally:
        hook.remove()
    assert len(found) == 2
    assert torch.equal(found[1], expected)


def test_the_engine_does_not_keep_its_model_alive() -> None:
    import gc
    from weakref import ref

    model: Any = tiny_model(seed=26)
    generate(model, ids("Bees"), max_new_tokens=6, do_sample=False)
    LanguageModel(model, byte_tokenizer()).generate_batch(["Bees", "Wax"], max_new_tokens=5)
    gone = ref(model)
    del model
    for _ in range(200):  # the engine's thread lets go of the last step a moment after its caller has it
        gc.collect()
        if gone() is None:
            break
        sleep(0.01)
    assert gone() is None


PROMPT = "the passages that retrieval found are the drafts that decoding verifies"


@contextmanager
def left_behind() -> Iterator[list[object]]:
    """Return the tensors created in this context that only the garbage collector could free."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def leave_a_stream(model: LanguageModel) -> None:
    with model.stream(PROMPT, references=[PROMPT], max_new_tokens=32) as pieces:
        next(pieces)


def leave_a_batch(model: LanguageModel) -> None:
    for steps in steps_together(model, [PROMPT, PROMPT[:20]], max_new_tokens=32):
        next(steps)


def in_threads(model: LanguageModel) -> None:
    threads = [Thread(target=lambda: model.generate(PROMPT, max_new_tokens=8)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WAYS: dict[str, Callable[[LanguageModel], object]] = {
    "greedy": lambda model: model.generate(PROMPT, references=[PROMPT], max_new_tokens=8),
    "sampled": lambda model: model.generate(PROMPT, max_new_tokens=8, temperature=0.9, seed=1),
    "stopped": lambda model: model.generate(PROMPT, max_new_tokens=8, stop=["e", "a"]),
    "messages": lambda model: model.generate([{"role": "user", "content": PROMPT}], max_new_tokens=8),
    "stream left": leave_a_stream,
    "batch": lambda model: model.generate_batch([PROMPT, PROMPT[:20]], max_new_tokens=8),
    "batch left": leave_a_batch,
    "threads": in_threads,
}


@pytest.mark.parametrize("engine", ["torch", "openvino"])
@pytest.mark.parametrize("way", part(WAYS, ("stopped", "stream left", "batch left", "threads")))
def test_tensors_are_freed_without_the_garbage_collector(way: str, engine: EngineName) -> None:
    if engine == "openvino":
        pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")
    torch.set_num_threads(1)
    model = LanguageModel(tiny_model("llama"), byte_tokenizer(), engine=engine)
    WAYS[way](model)  # the first request creates objects that live as long as the model
    with left_behind() as found:
        WAYS[way](model)
    assert [each for each in found if isinstance(each, Tensor) or "Sequence" in type(each).__name__] == []
