"""Prepacked weights: the same numbers sooner, for one forward at a time, and never those of earlier weights."""

import copy
import gc
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from antiphon.accel import prepacked as room
from antiphon.accel.adversary import Thicket, Witness
from antiphon.accel.batch import Batch
from antiphon.accel.cache import CachedModel
from antiphon.accel.cost_store import describe, step_cost
from antiphon.accel.diagnosis import diagnose
from antiphon.accel.draft import chain
from antiphon.accel.drafters import Nothing
from antiphon.accel.generate import generate
from antiphon.accel.prepacked import Prepacked, Product, free_memory, prepack, prepacked
from antiphon.accel.probe import traits_of
from antiphon.accel.tiny import FAMILIES, VOCABULARY, tiny_model
from tests.accel.oracles import expect_plain_logits

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}

pytestmark = pytest.mark.skipif(
    bool(Prepacked(tiny_model(hidden_size=256, intermediate_size=512)).reason), reason="torch cannot prepack here"
)


@pytest.fixture(autouse=True)
def every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a layer is, it gets a copy."""
    monkeypatch.setattr(room, "LEAST", 0)


def text_of(model: Any, **options: Any) -> list[int]:
    output = generate(model, PROMPT, rows=8, **OPTIONS | options)
    assert isinstance(output, Tensor)
    tokens: list[int] = output[0].tolist()
    return tokens


def plain_text_of(model: Any) -> list[int]:
    tokens: list[int] = model.generate(PROMPT, **OPTIONS)[0].tolist()
    return tokens


def hidden_layer(model: Any) -> Any:
    return model.model.layers[0].mlp.up_proj


@pytest.mark.parametrize("family", FAMILIES)
def test_text_and_logits_are_plain_decodings(family: str) -> None:
    model: Any = tiny_model(family)
    expected = plain_text_of(model)
    witness = Witness(Thicket(expected, 1, VOCABULARY))
    assert text_of(model, drafter=lambda: witness) == expected
    expect_plain_logits(model, expected, witness.sights)
    assert len(prepacked(model)) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 9, 65])
def test_a_product_is_torchs_own(dtype: torch.dtype, bias: bool, rows: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rows)
        layer, given = nn.Linear(300, 500, bias=bias).to(dtype), torch.randn(2, rows, 300).to(dtype)
    with torch.no_grad():
        truth = linear(given.double(), layer.weight.double(), layer.bias.double() if bias else None)
        errors = [(each(given).double() - truth).abs().mean() for each in (Product(layer), layer)]
    assert errors[0] <= room.WORSE[dtype] * errors[1]
    assert 0 < errors[0] < (1e-6 if dtype == torch.float32 else 5e-3)


def test_what_the_kernel_is_not_made_for_goes_to_torch() -> None:
    layer = nn.Linear(30, 50)
    product = Product(layer)
    torch.autograd.backward(product(torch.ones(1, 30)).sum())
    assert layer.weight.grad is not None
    with torch.no_grad(), pytest.raises(RuntimeError, match="dtype"):
        product(torch.ones(1, 30, dtype=torch.bfloat16))  # as torch says of two precisions itself


def test_layers_are_computed_by_their_copies_in_a_forward_and_by_themselves_after_it() -> None:
    model: Any = tiny_model()
    inside: list[bool] = []
    hidden_layer(model).register_forward_hook(lambda layer, *_: inside.append("forward" in vars(layer)))
    cached = CachedModel(model, traits_of(model))
    with torch.no_grad():
        cached.prefill([1, 2, 3])
        inside.clear()
        cached.keep(())
        cached.forward([4], chain([5, 6]))
        assert inside == [True]
        model(PROMPT)
    assert inside == [True, False]
    assert all("forward" not in vars(layer) for layer in prepacked(model))
    copy.deepcopy(model)


def test_a_forward_that_fails_leaves_the_model_as_it_was() -> None:
    model = tiny_model()
    cached = CachedModel(model, traits_of(model))
    with torch.no_grad(), pytest.raises(IndexError):
        cached.prefill([VOCABULARY])
    assert "forward" not in vars(hidden_layer(model))


def test_forwards_of_several_threads_share_the_copies_until_the_last_one_ends() -> None:
    model = tiny_model()
    weights, layer, meeting = prepacked(model), hidden_layer(model), Barrier(2, timeout=10)
    seen: list[bool] = []

    def other() -> None:
        with weights.lent():
            meeting.wait()
            meeting.wait()

    thread = Thread(target=other)
    thread.start()
    with weights.lent():
        meeting.wait()
        seen.append("forward" in vars(layer))
    seen.append("forward" in vars(layer))
    assert prepacked(model) is weights, "who asks meanwhile is not told that the layers belong to another"
    meeting.wait()
    thread.join()
    assert [*seen, "forward" in vars(layer)] == [True, True, False]


def test_first_requests_that_come_together_make_one_set_of_copies() -> None:
    model = tiny_model()
    found: list[Prepacked] = []
    threads = [Thread(target=lambda: found.append(prepacked(model))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(each is found[0] for each in found)


def double_in_place(model: Any) -> None:
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(-3.0)


def behind_the_counters(model: Any) -> None:
    """As an adapter is merged."""
    for layer in model.model.layers:
        layer.mlp.down_proj.weight.data += 0.5 * layer.mlp.down_proj.weight.data.flip(0)


def by_another_parameter(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.down_proj.weight = nn.Parameter(-2 * layer.mlp.down_proj.weight.detach())


def by_a_state(model: Any) -> None:
    model.load_state_dict(tiny_model(seed=8).state_dict())


def to_half(model: Any) -> None:
    model.to(torch.bfloat16)


@pytest.mark.parametrize("change", [double_in_place, behind_the_counters, by_another_parameter, by_a_state, to_half])
def test_weights_that_have_changed_are_copied_anew(change: Any) -> None:
    model: Any = tiny_model()
    before, copies = text_of(model), prepacked(model)
    assert prepacked(model) is copies
    change(model)
    expected = plain_text_of(model)
    assert text_of(model) == expected
    assert expected != before, "the change says something else"
    assert prepacked(model) is not copies


def test_a_forward_that_somebody_else_put_in_is_theirs() -> None:
    model: Any = tiny_model()
    text_of(model)
    layer, calls = hidden_layer(model), 0
    own = layer.forward

    def hooked(given: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        output: Tensor = own(given)
        return output

    layer.forward = hooked  # as accelerate does
    assert text_of(model, drafter=Nothing) == plain_text_of(model)
    assert calls == 2 * (OPTIONS["max_new_tokens"])
    assert layer.forward is hooked
    assert layer not in list(prepacked(model))


def test_subclasses_of_linear_layers_are_left_alone() -> None:
    class Quantized(nn.Linear):
        """Keeps its weight in a form of its own."""

    model: Any = tiny_model()
    model.model.layers[0].mlp.up_proj = Quantized(64, 96)
    assert not any(isinstance(layer, Quantized) for layer in prepacked(model))


def test_under_autocast_layers_stay_as_they_are() -> None:
    model = tiny_model()
    with torch.autocast("cpu", torch.bfloat16), prepacked(model).lent():
        assert "forward" not in vars(hidden_layer(model))


def test_copies_end_with_the_model() -> None:
    model = tiny_model()
    text_of(model)
    copies = ref(prepacked(model))
    del model
    gc.collect()
    assert copies() is None


def test_copies_take_at_most_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = tiny_model()
    size = sum(layer.weight.nbytes for layer in model.modules() if isinstance(layer, nn.Linear))
    monkeypatch.setattr(room, "free_memory", lambda: 2 * size - 1)
    assert (len(prepacked(model)), prepacked(model).size) == (0, 0)
    assert "its copies would take" in prepacked(model).reason
    assert text_of(model) == plain_text_of(model)
    assert (prepack(model, True).size, prepack(model, True).reason) == (size, "")
    assert len(prepack(model)) == 0
    monkeypatch.setattr(room, "free_memory", lambda: 2 * size)
    assert prepack(model).size == size


def test_copies_can_be_declined_and_steps_are_then_measured_without() -> None:
    model = tiny_model()
    key, cost = describe(model), step_cost(model)
    assert prepack(model, False).reason == "it was declined"
    with prepacked(model).lent():
        assert "forward" not in vars(hidden_layer(model))
    assert describe(model) != key
    assert step_cost(model) is not cost
    prepack(model)
    assert step_cost(model) is cost


def test_a_container_has_what_its_limit_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "GROUPS", [(tmp_path / "max", tmp_path / "current")])
    machine = free_memory()
    assert machine > 2**20
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "current").write_text("5000\n")
    assert free_memory() > 2**20
    (tmp_path / "max").write_text("12000\n")
    assert free_memory() == 7000


def test_a_kernel_that_is_less_exact_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Product.__call__

    def rounded(self: Product, given: Tensor) -> Tensor:
        return exact(self, given).bfloat16().to(given.dtype)

    monkeypatch.setattr(Product, "__call__", rounded)
    assert prepacked(tiny_model()).reason == "its products would be less exact"
    half: Any = tiny_model()
    assert prepacked(half.to(torch.bfloat16)).reason == "", "there it is as exact as any"


def test_a_torch_that_cannot_says_so_and_decodes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Product, module: nn.Linear) -> None:
        raise RuntimeError("no such\nkernel")

    monkeypatch.setattr(Product, "__init__", broken)
    model = tiny_model()
    assert prepacked(model).reason == "torch cannot here: no such kernel"
    assert text_of(model) == plain_text_of(model)
    found = diagnose(model)
    assert (found.prepacked, found.prepacking) == (0, "torch cannot here: no such kernel")


def test_layers_without_work_for_a_kernel_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LEAST", 10**9)
    assert "no linear layer on a CPU has 1,000,000,000 weights" in prepacked(tiny_model()).reason


def test_a_compiled_model_stays_as_it_was_compiled() -> None:
    model = tiny_model()
    model.compile(backend="eager")
    assert prepacked(model).reason == "its forward is compiled"


def test_texts_that_share_forwards_share_the_copies() -> None:
    model: Any = tiny_model()
    inside: list[bool] = []
    hidden_layer(model).register_forward_hook(lambda layer, *_: inside.append("forward" in vars(layer)))
    memory = Batch(model).memory
    memory.admit([[1, 2, 3], [4, 5]])
    assert inside[-1] is True


def test_deterministic_decoding_rounds_as_torch_does() -> None:
    model: Any = tiny_model()
    text_of(model, deterministic=True)
    inside: list[bool] = []
    hidden_layer(model).register_forward_hook(lambda layer, *_: inside.append("forward" in vars(layer)))
    text_of(model, deterministic=True)
    assert inside
    assert not any(inside)
