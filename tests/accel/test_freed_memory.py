"""The memory of a request is freed when it ends or is dropped, without the garbage collector."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
import torch
from torch import Tensor

from antiphon.accel import LanguageModel
from antiphon.accel.engines.selection import EngineName
from tests.accel.batches import steps_together
from tests.table_part import part
from tests.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow

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
