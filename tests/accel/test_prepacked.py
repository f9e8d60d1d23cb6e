"""Prepacked weights: the same numbers sooner, for one forward at a time, and never those of earlier weights."""

import copy
import gc
from threading import Barrier, Thread
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from antiphon.accel.drafting.draft import chain
from antiphon.accel.drafting.drafters import Nothing
from antiphon.accel.engines.protocol import Feed
from antiphon.accel.engines.torch.engine import engine_of, prepack
from antiphon.accel.engines.torch.prepacked import BLOCK, GRAIN, WORSE, Prepacked, Prepacking, Product
from antiphon.accel.generate import generate
from antiphon.accel.testing.drafters import RandomTreeDrafter, RecordingDrafter
from antiphon.accel.testing.tiny import FAMILIES, VOCABULARY, tiny_model
from tests.accel.oracles import expect_plain_logits

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")  # type: ignore[no-untyped-call]
HALF = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(
        not getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", bool)(),
        reason="oneDNN has no kernels for bfloat16 on this processor",
    ),
)


EVERY_LAYER = Prepacking(least=0, seconds=lambda multiply, input: 1.0)
"""However small a layer is, and however busy the machine, it gets a copy."""


def prepacked_model(family: str = "llama", **changes: Any) -> Any:
    """A model that decodes by prepacked weights."""
    model = tiny_model(family, **changes)
    prepack_as(model)
    return model


def prepack_as(model: Any, wanted: bool | None = None, prepacking: Prepacking = EVERY_LAYER) -> Prepacked:
    """Decide anew about the weights of a model, by these rules."""
    engine_of(model).prepacking = prepacking
    return prepack(model, wanted)


def copies_of(model: Any) -> Prepacked:
    """The prepacked weights that a request would be given now."""
    engine = engine_of(model)
    return engine.lock.run(lambda: engine.prepacked)


def text_of(model: Any, **options: Any) -> list[int]:
    output = generate(model, PROMPT, num_draft_tokens=8, **OPTIONS | options)
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
    model = prepacked_model(family)
    expected = plain_text_of(model)
    recorder = RecordingDrafter(RandomTreeDrafter(expected, 1, VOCABULARY))
    assert text_of(model, drafter=lambda: recorder) == expected
    expect_plain_logits(model, expected, recorder.records)
    assert len(copies_of(model)) > 0


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 9, 65])
def test_a_product_is_torchs_own(dtype: torch.dtype, bias: bool, rows: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rows)
        layer, given = nn.Linear(300, 500, bias=bias).to(dtype), torch.randn(2, rows, 300).to(dtype)
    with torch.no_grad():
        truth = linear(given.double(), layer.weight.double(), layer.bias.double() if bias else None)
        errors = [(each(given).double() - truth).abs().mean() for each in (Product(layer, None), layer)]
    assert errors[0] <= WORSE[dtype] * errors[1]
    assert 0 < errors[0] < (1e-6 if dtype == torch.float32 else 5e-3)


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it without types
    """Notes how many rows every call of the kernel has; for each number that it has not met it keeps memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.mkldnn._linear_pointwise.default:
            self.rows.append(args[0].numel() // args[0].shape[-1])
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_prompts_of_any_length_are_multiplied_in_few_shapes() -> None:
    layer = nn.Linear(48, 96)
    product = Product(layer, None)
    inputs = [torch.randn((1, BLOCK + more, 48)) for more in (0, 1, 77, BLOCK, 3 * BLOCK + 5)]
    with Shapes() as shapes:
        outputs = [product.multiply(input) for input in [*inputs, torch.stack([inputs[1][0]] * 2)]]
    assert set(shapes.rows) == {BLOCK, GRAIN, 3 * GRAIN, 2 * BLOCK, 4 * BLOCK}
    for output, input in zip(outputs, inputs, strict=False):
        torch.testing.assert_close(output, linear(input, layer.weight, layer.bias), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs[-1][1], outputs[1][0], rtol=1e-4, atol=1e-5)


def test_what_the_kernel_is_not_made_for_goes_to_torch() -> None:
    layer = nn.Linear(30, 50)
    product = Product(layer, None)
    torch.autograd.backward(product(torch.ones(1, 30)).sum())
    assert layer.weight.grad is not None
    with torch.no_grad(), pytest.raises(RuntimeError, match="dtype"):
        product(torch.ones(1, 30, dtype=torch.bfloat16))  # as torch says of two precisions itself


def test_layers_are_computed_by_their_copies_in_a_forward_and_by_themselves_after_it() -> None:
    model = prepacked_model()
    inside: list[bool] = []
    hidden_layer(model).register_forward_hook(lambda layer, *_: inside.append("forward" in vars(layer)))
    cached = engine_of(model).sequence()
    with torch.no_grad():
        cached.prefill([1, 2, 3])
        inside.clear()
        cached.keep(())
        cached.forward([4], chain([5, 6]))
        assert inside == [True]
        model(PROMPT)
    assert inside == [True, False]
    assert all("forward" not in vars(layer) for layer in copies_of(model))
    copy.deepcopy(model)


def test_a_forward_that_fails_leaves_the_model_as_it_was() -> None:
    model = prepacked_model()
    cached = engine_of(model).sequence()
    with torch.no_grad(), pytest.raises(IndexError):
        cached.prefill([VOCABULARY])
    assert "forward" not in vars(hidden_layer(model))


def test_forwards_of_several_threads_share_the_copies_until_the_last_one_ends() -> None:
    model = prepacked_model()
    weights, layer, meeting = copies_of(model), hidden_layer(model), Barrier(2, timeout=10)
    seen: list[bool] = []

    def other() -> None:
        with weights.applied():
            meeting.wait()
            meeting.wait()

    thread = Thread(target=other)
    thread.start()
    with weights.applied():
        meeting.wait()
        seen.append("forward" in vars(layer))
    seen.append("forward" in vars(layer))
    assert copies_of(model) is weights, "who asks meanwhile is not told that the layers belong to another"
    meeting.wait()
    thread.join()
    assert [*seen, "forward" in vars(layer)] == [True, True, False]


def test_a_forward_of_another_thread_never_meets_copies_that_are_not_its_own() -> None:
    """Neither those of weights that are no more, nor any where it asked for none."""
    model = prepacked_model()
    first = copies_of(model)
    double_in_place(model)
    expected = model(PROMPT).logits
    found: list[Tensor] = []

    def other() -> None:
        with torch.no_grad():
            found.append(model(PROMPT).logits)
            with copies_of(model).applied():
                found.append(model(PROMPT).logits)

    with first.applied():
        thread = Thread(target=other)
        thread.start()
        thread.join()
    assert len(copies_of(model)) > 0
    assert torch.equal(found[0], expected)
    torch.testing.assert_close(found[1], expected)


def test_first_requests_that_come_together_make_one_set_of_copies() -> None:
    model = prepacked_model()
    double_in_place(model)  # whoever asks next needs other copies
    found: list[Prepacked] = []
    start = Barrier(4, timeout=10)

    def ask() -> None:
        start.wait()
        found.append(copies_of(model))

    threads = [Thread(target=ask) for _ in range(4)]
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
    model.load_state_dict(tiny_model(seed=8, mlp_bias=True).state_dict())


def one_row(model: Any) -> None:
    """As words are added to a table: the highest of them, which a square corner of it does not hold."""
    model.lm_head.weight.data[VOCABULARY - 1] = 4 * model.lm_head.weight.data[plain_text_of(model)[-1]]


def only_a_bias(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.down_proj.bias = nn.Parameter(layer.mlp.down_proj.bias.detach().flip(0) + 1)


def by_another_layer(model: Any) -> None:
    model.set_output_embeddings(nn.Linear(64, VOCABULARY, bias=False))


@pytest.mark.parametrize(
    "change",
    [double_in_place, behind_the_counters, by_another_parameter, by_a_state, one_row, only_a_bias, by_another_layer],
)
def test_weights_that_have_changed_are_not_computed_by_old_copies(change: Any) -> None:
    model = prepacked_model(mlp_bias=True)
    before, copies = text_of(model), copies_of(model)
    assert copies_of(model) is copies
    change(model)
    expected = plain_text_of(model)
    assert text_of(model) == expected
    assert expected != before, "the change says something else"
    assert len(copies_of(model)) == len(copies)
    assert (copies_of(model) is copies) == (change is only_a_bias)


def test_a_model_that_goes_to_another_precision_gets_copies_of_that() -> None:
    model = prepacked_model()
    copies = copies_of(model)
    model.to(torch.float64)
    assert len(copies_of(model)) == 0
    model.to(torch.float32)
    assert len(copies_of(model)) == len(copies)
    assert copies_of(model) is not copies


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft's of transformers
def test_a_merged_adapter_may_be_taken_out_in_the_midst_of_a_forward() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["up_proj"], init_lora_weights=False, r=4, lora_alpha=64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        adapted = peft.get_peft_model(tiny_model(), config)
    model = adapted.base_model.model
    prepack_as(model)
    own = len(copies_of(model))
    with adapted.disable_adapter():
        base = plain_text_of(model)
    assert text_of(model) == plain_text_of(model) != base
    adapted.merge_adapter()
    assert text_of(model) == plain_text_of(model) != base
    assert own - len(copies_of(model)) == 2, "one in each layer"
    with adapted.disable_adapter():
        assert text_of(model) == base


def test_a_hook_that_steers_a_weight_is_followed() -> None:
    model = prepacked_model()
    copies = copies_of(model)

    def steer(layer: Any, given: Any) -> None:
        layer.weight.data.neg_()

    handle = hidden_layer(model).register_forward_pre_hook(steer)
    assert hidden_layer(model) not in list(copies_of(model))
    handle.remove()
    assert len(copies_of(model)) == len(copies)


def test_a_forward_that_somebody_else_put_in_is_theirs() -> None:
    model = prepacked_model()
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
    assert layer not in list(copies_of(model))


def test_subclasses_of_linear_layers_are_left_alone() -> None:
    class Quantized(nn.Linear):
        """Keeps its weight in a form of its own."""

    model = prepacked_model()
    model.model.layers[0].mlp.up_proj = Quantized(64, 96)
    assert not any(isinstance(layer, Quantized) for layer in copies_of(model))


def test_under_autocast_layers_stay_as_they_are() -> None:
    model = prepacked_model()
    with torch.autocast("cpu", torch.bfloat16), copies_of(model).applied():
        assert "forward" not in vars(hidden_layer(model))


def test_copies_end_with_the_model() -> None:
    model = prepacked_model()
    text_of(model)
    copies = ref(copies_of(model))
    del model
    gc.collect()
    assert copies() is None


def test_texts_that_share_forwards_share_the_copies() -> None:
    model = prepacked_model()
    inside: list[bool] = []
    hidden_layer(model).register_forward_hook(lambda layer, *_: inside.append("forward" in vars(layer)))
    engine = engine_of(model)
    assert engine.sharing is not None
    first, second = (Feed(engine.sequence(), prompt) for prompt in ([1, 2, 3], [4, 5]))
    inside.clear()
    with torch.no_grad():
        engine.forward([first, second])
    assert inside == [True]


def test_deterministic_decoding_rounds_as_torch_does() -> None:
    model = prepacked_model()
    text_of(model, deterministic=True)
    inside: list[bool] = []
    hidden_layer(model).register_forward_hook(lambda layer, *_: inside.append("forward" in vars(layer)))
    text_of(model, deterministic=True)
    assert inside
    assert not any(inside)
