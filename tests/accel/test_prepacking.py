"""Which layers get prepacked weights, and which do not: memory, exactness, time, and what was asked for."""

from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from antiphon.accel.engines.torch import free_memory as free_memory_module
from antiphon.accel.engines.torch import prepacked as room
from antiphon.accel.engines.torch.cost_store import describe
from antiphon.accel.engines.torch.engine import engine_of, prepack
from antiphon.accel.engines.torch.free_memory import free_memory
from antiphon.accel.engines.torch.prepacked import Product
from antiphon.accel.testing.diagnosis import diagnose
from antiphon.accel.testing.tiny import tiny_model
from tests.accel.test_prepacked import PROMPT, copies_of, hidden_layer, plain_text_of, text_of
from tests.accel.test_prepacked import every_layer as every_layer
from tests.accel.test_prepacked import pytestmark as pytestmark


def test_copies_take_at_most_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = tiny_model()
    size = sum(layer.weight.nbytes for layer in model.modules() if isinstance(layer, nn.Linear))
    monkeypatch.setattr(room, "free_memory", lambda: 2 * size - 1)
    assert (len(prepack(model)), prepack(model).size) == (0, 0)
    assert "its copies would take" in copies_of(model).reason
    assert text_of(model) == plain_text_of(model)
    assert (prepack(model, True).size, prepack(model, True).reason) == (size, "")
    assert len(prepack(model)) == 0
    monkeypatch.setattr(room, "free_memory", lambda: 2 * size)
    assert prepack(model).size == size


def test_copies_can_be_declined_and_steps_are_then_measured_without() -> None:
    model = tiny_model()
    engine = engine_of(model)
    key, cost = describe(model, len(prepack(model))), engine.step_cost()
    assert prepack(model, False).reason == "it was declined"
    with copies_of(model).applied():
        assert "forward" not in vars(hidden_layer(model))
    assert describe(model, len(engine.prepacked)) != key
    assert engine.step_cost() is not cost
    prepack(model)
    assert engine.step_cost() is cost


def test_a_container_has_what_its_limit_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name, path in {"GROUPS": tmp_path, "OWN": tmp_path / "own"}.items():
        monkeypatch.setattr(free_memory_module, name, path)
    assert free_memory() > 2**20, "no groups at all"
    limits = {
        "outer": ("memory.max", "memory.current"),
        "memory/jobs": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    }
    for group, (most, used) in limits.items():
        (tmp_path / group).mkdir(parents=True)
        (tmp_path / group / most).write_text("max\n")
        (tmp_path / group / used).write_text("5000\n")
    (tmp_path / "own").write_text("0::/outer/inner\n4:cpu,cpuacct:/outer\n3:memory:/jobs/17\n")
    assert free_memory() > 2**20
    (tmp_path / "outer" / "memory.max").write_text("12000\n")
    assert free_memory() == 7000
    (tmp_path / "memory/jobs" / "memory.limit_in_bytes").write_text("6000\n")
    assert free_memory() == 1000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_memory() == 250


def test_a_kernel_that_is_less_exact_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Product.multiply
    monkeypatch.setattr(Product, "multiply", lambda self, given: exact(self, given).bfloat16().to(given.dtype))
    assert prepack(tiny_model()).reason == "its products would be less exact"


def test_a_kernel_that_is_slower_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_seconds", lambda multiply, given: 2.0 if multiply.__name__ == "multiply" else 1.9)
    assert prepack(tiny_model()).reason == "its products would be slower"


def test_time_is_taken_of_the_fastest_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pauses = iter([0.05, 0.0, 0.05])

    def multiply(given: Tensor) -> Tensor:
        sleep(next(pauses))
        return given

    assert 0 < room._seconds(multiply, PROMPT) < 0.04


def test_layers_that_torch_cannot_prepack_do_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = tiny_model()
    make = Product.__init__

    def picky(self: Product, module: nn.Linear, owner: object) -> None:
        if module is model.lm_head:
            raise RuntimeError("not this one")
        make(self, module, owner)

    everything = len(prepack(model))
    monkeypatch.setattr(Product, "__init__", picky)
    assert len(prepack(model)) == everything - 1
    assert copies_of(model).reason == ""


def test_a_torch_that_cannot_says_so_and_decodes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Product, module: nn.Linear, owner: object) -> None:
        raise RuntimeError("no such\nkernel")

    monkeypatch.setattr(Product, "__init__", broken)
    model = tiny_model()
    assert prepack(model).reason == "torch cannot here: no such kernel"
    assert text_of(model) == plain_text_of(model)
    found = diagnose(model)
    assert (found.prepacked, found.prepacking) == (0, "torch cannot here: no such kernel")


def test_layers_without_work_for_a_kernel_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LEAST", 10**9)
    assert prepack(tiny_model()).reason == (
        "no linear layer that torch alone computes on a CPU has 1,000,000,000 weights"
    )


def test_a_compiled_model_stays_as_it_was_compiled() -> None:
    model = tiny_model()
    model.compile(backend="eager")
    assert prepack(model).reason == "its forward is compiled"
    other: Any = tiny_model()
    other.forward = torch.compile(other.forward, backend="eager")
    assert prepack(other).reason == "its forward is compiled"


def test_where_onednn_is_turned_off_it_stays_off() -> None:
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        assert prepack(tiny_model()).reason == "oneDNN is turned off"
