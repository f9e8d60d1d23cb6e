"""Which layers get prepacked weights, and which do not: memory, exactness, time, and what was asked for."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from antiphon.accel.engines.torch.cost_store import describe
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.free_memory import free_memory
from antiphon.accel.engines.torch.prepacked import Product, fastest_seconds
from antiphon.accel.testing.diagnosis import diagnose
from antiphon.accel.testing.tiny import tiny_model
from tests.accel.test_prepacked import EVERY_LAYER, PROMPT, copies_of, hidden_layer, plain_text_of, prepack_as, text_of
from tests.accel.test_prepacked import pytestmark as pytestmark


def test_copies_take_at_most_half_of_what_is_free() -> None:
    model: Any = tiny_model()
    size = sum(layer.weight.nbytes for layer in model.modules() if isinstance(layer, nn.Linear))
    too_little = replace(EVERY_LAYER, free_memory=lambda: 2 * size - 1)
    copies = prepack_as(model, None, too_little)
    assert (len(copies), copies.size) == (0, 0)
    assert "its copies would take" in copies_of(model).reason
    assert text_of(model) == plain_text_of(model)
    forced = prepack_as(model, True, too_little)
    assert (forced.size, forced.reason) == (size, "")
    assert len(prepack_as(model, None, too_little)) == 0
    assert prepack_as(model, None, replace(EVERY_LAYER, free_memory=lambda: 2 * size)).size == size


def test_a_borrowed_model_is_not_said_to_have_declined_what_nobody_asked_for() -> None:
    assert "borrowed" in engine_of(tiny_model()).prepacked.reason


def test_copies_can_be_declined_and_steps_are_then_measured_without() -> None:
    model = tiny_model()
    engine = engine_of(model)
    key, cost = describe(model, len(prepack_as(model))), engine.step_cost()
    assert prepack_as(model, False).reason == "it was declined"
    with copies_of(model).applied():
        assert "forward" not in vars(hidden_layer(model))
    assert describe(model, len(engine.prepacked)) != key
    assert engine.step_cost() is not cost
    prepack_as(model)
    assert engine.step_cost() is cost


def test_a_container_has_what_its_limit_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    free = partial(free_memory, groups=tmp_path, own=tmp_path / "own")
    assert free() > 2**20, "no groups at all"
    limits = {
        "outer": ("memory.max", "memory.current"),
        "memory/jobs": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    }
    for group, (most, used) in limits.items():
        (tmp_path / group).mkdir(parents=True)
        (tmp_path / group / most).write_text("max\n")
        (tmp_path / group / used).write_text("5000\n")
    (tmp_path / "own").write_text("0::/outer/inner\n4:cpu,cpuacct:/outer\n3:memory:/jobs/17\n")
    assert free() > 2**20
    (tmp_path / "outer" / "memory.max").write_text("12000\n")
    assert free() == 7000
    (tmp_path / "memory/jobs" / "memory.limit_in_bytes").write_text("6000\n")
    assert free() == 1000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free() == 250


class Rough(Product):
    """A kernel that is less exact than torch."""

    def multiply(self, input: Tensor) -> Tensor:
        return super().multiply(input).bfloat16().to(input.dtype)


def test_a_kernel_that_is_less_exact_is_not_used() -> None:
    rough = replace(EVERY_LAYER, product=Rough)
    assert prepack_as(tiny_model(), None, rough).reason == "its products would be less exact"


def test_a_kernel_that_is_slower_is_not_used() -> None:
    slower = replace(EVERY_LAYER, seconds=lambda multiply, given: 2.0 if multiply.__name__ == "multiply" else 1.9)
    assert prepack_as(tiny_model(), None, slower).reason == "its products would be slower"


def test_time_is_taken_of_the_fastest_try() -> None:
    pauses = iter([0.05, 0.0, 0.05])

    def multiply(given: Tensor) -> Tensor:
        sleep(next(pauses))
        return given

    assert 0 < fastest_seconds(multiply, PROMPT) < 0.04


def test_layers_that_torch_cannot_prepack_do_not_stop_the_others() -> None:
    model: Any = tiny_model()

    def picky(module: nn.Linear, owner: object) -> Product:
        if module is model.lm_head:
            raise RuntimeError("not this one")
        return Product(module, owner)

    everything = len(prepack_as(model))
    assert len(prepack_as(model, None, replace(EVERY_LAYER, product=picky))) == everything - 1
    assert copies_of(model).reason == ""


def test_a_torch_that_cannot_says_so_and_decodes_without() -> None:
    def broken(module: nn.Linear, owner: object) -> Product:
        raise RuntimeError("no such\nkernel")

    model = tiny_model()
    assert prepack_as(model, None, replace(EVERY_LAYER, product=broken)).reason == "torch cannot here: no such kernel"
    assert text_of(model) == plain_text_of(model)
    found = diagnose(model)
    assert (found.prepacked, found.prepacking) == (0, "torch cannot here: no such kernel")


def test_layers_without_work_for_a_kernel_are_left_alone() -> None:
    assert prepack_as(tiny_model(), None, replace(EVERY_LAYER, least=10**9)).reason == (
        "no linear layer that torch alone computes on a CPU has 1,000,000,000 weights"
    )


def test_a_compiled_model_stays_as_it_was_compiled() -> None:
    model = tiny_model()
    model.compile(backend="eager")
    assert prepack_as(model).reason == "its forward is compiled"
    other: Any = tiny_model()
    other.forward = torch.compile(other.forward, backend="eager")
    assert prepack_as(other).reason == "its forward is compiled"


def test_where_onednn_is_turned_off_it_stays_off() -> None:
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        assert prepack_as(tiny_model()).reason == "oneDNN is turned off"
