"""One engine per model: one lock for its forward passes, and no change of the model that others can see."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread, get_ident
from time import sleep
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.engines.torch.attention import implementation_of
from antiphon.accel.generate import generate, stream
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
