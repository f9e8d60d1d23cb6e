"""Linear layers over prepacked weights: a second copy of each, in the order in which the CPU's kernels read it.

Torch hands its kernels a weight as it is stored, and they put it in their own order again in every forward: for a few
rows that takes longer than the product. Knows weights and rows, and neither texts nor drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock, local
from time import perf_counter
from types import NoneType

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from antiphon.accel.engines.torch.free_memory import free_memory

LEAST = 2**16
"""Weights of fewer numbers stay as they are: calling the kernel takes longer than their product."""

SHARE = 0.5
"""The copies may take so much of the memory that is free."""

ROWS = (1, 2, 33)
"""For so many rows a product is compared with torch's."""

BLOCK, GRAIN = 256, 32
"""More rows than a block are multiplied by whole blocks, and what is left by whole grains. For each number of rows that
it has not met oneDNN makes code and keeps it, amid what torch gives and takes: with every length of a prompt a process
grew by megabytes."""

TRIES = 3
"""The fastest of so many counts."""

OUTPUTS = 256
"""About so many outputs of a product are compared with those in double precision."""

WORSE = {torch.float32: 4.0, torch.bfloat16: 1.1, torch.float16: 1.1}
"""How many times torch's own mean error the kernel's may be, by the precision of the weights. Results in half precision
are rounded sums in single, whose order hardly shows. In single precision it does: on 4,864 inputs torch's own error for
one row was 2.4 times that for four (Zen 5), and the kernel's in between."""

FAILURES = (RuntimeError, AttributeError, ValueError, TypeError)


class _Here(local):
    """Whose copies this thread's forward is computed by."""

    owner: object = None


_here = _Here()


class Product:
    """A layer's forward in those forwards whose ``owner``'s copies are applied; in all others the layer's own.

    Raises:
        RuntimeError, AttributeError: torch has no such kernel here.
    """

    def __init__(self, module: nn.Linear, owner: object) -> None:
        self.owner = owner
        self.dtype = module.weight.dtype
        self._parameters = module._parameters
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(module.weight.detach())
        self._multiply: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, input: Tensor) -> Tensor:
        """The layer's output for rows of shape (..., inputs)."""
        if _here.owner is not self.owner or input.dtype is not self.dtype or torch.is_grad_enabled():
            return self.own(input)
        return self.multiply(input)

    def own(self, input: Tensor) -> Tensor:
        """As torch computes it from the weight."""
        weight = self._parameters["weight"]
        assert weight is not None
        return linear(input, weight, self._parameters["bias"])

    def multiply(self, input: Tensor) -> Tensor:
        """As the kernel computes it from the copy; some of many rows are computed twice, for few shapes."""
        if input.numel() <= BLOCK * input.shape[-1]:
            return self._kernel(input)
        rows = input.flatten(end_dim=-2)
        rest = len(rows) % BLOCK
        outputs = [self._kernel(rows[: len(rows) - rest])]
        if rest:
            outputs.append(self._kernel(rows[-(-(-rest // GRAIN) * GRAIN) :])[-rest:])
        return torch.cat(outputs).view(*input.shape[:-1], -1)

    def _kernel(self, input: Tensor) -> Tensor:
        return self._multiply(input, self._packed, self._parameters["bias"], "none", [], "")


def fastest_seconds(multiply: Callable[[Tensor], Tensor], input: Tensor) -> float:
    """What a product of these rows takes: the fastest of a few tries."""
    taken: list[float] = []
    for _ in range(TRIES):
        started = perf_counter()
        multiply(input)
        taken.append(perf_counter() - started)
    return min(taken)


@dataclass(frozen=True, slots=True)
class Prepacking:
    """What decides which layers get prepacked weights, and who computes with them.

    Weights of at least so many numbers (``least``) are copied where ``free_memory`` says that there is room, and where
    ``seconds`` says that a ``product`` with the copy is no slower than torch's.
    """

    least: int = LEAST
    free_memory: Callable[[], int] = free_memory
    seconds: Callable[[Callable[[Tensor], Tensor], Tensor], float] = fastest_seconds
    product: Callable[[nn.Linear, object], Product] = Product


class Prepacked:
    """What stands in for a model's linear layers in the forwards that it is `applied` to.

    ``reason`` says why nothing does (``declined``, where they are not ``wanted``), and is empty otherwise. ``size`` is
    how many bytes the weights take that are copied. In a model that is ``owned``, whose weights nobody else changes,
    the layers keep the copies for good and choose by who calls; in a borrowed one they have them for the length of
    each forward.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: PreTrainedModel,
        *,
        wanted: bool | None = None,
        owned: bool = False,
        declined: str = "it was declined",
        prepacking: Prepacking | None = None,
    ) -> None:
        self._owner = object()
        self._prepacking = prepacking or Prepacking()
        self._modules = _linear_layers(model, self._prepacking.least)
        self._products: list[tuple[nn.Linear, Product]] = []
        self.reason = declined
        if wanted is not False:
            self.reason = _why_not(model, self._modules, self._prepacking, forced=bool(wanted))
        if not self.reason:
            with torch.autocast("cpu", enabled=False):
                self._products, self.reason = _products(self._modules, self._owner, self._prepacking)
        self.size = _size(self)
        self._seen, self._samples = self._counters(), self._sampled()
        self._users = 0
        self._lock = RLock()
        self.is_owned = owned
        if owned:
            self._install()

    def __len__(self) -> int:
        """How many layers have such a weight."""
        return len(self._products)

    def __iter__(self) -> Iterator[nn.Linear]:
        """The layers that have one."""
        return (module for module, _ in self._products)

    def is_current(self, model: PreTrainedModel) -> bool:
        """Whether the model still has the layers and weights that were copied: not after training, merging, moving.

        Of an owned model, which has no adapters merged or layers exchanged, torch's own counters tell.
        """
        if self.is_owned:
            return self._counters() == self._seen
        return (
            _linear_layers(model, self._prepacking.least) == self._modules
            and self._counters() == self._seen
            and torch.equal(self._sampled(), self._samples)
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let this thread's forwards be computed by the copies in here; under autocast they are computed as ever.

        Forwards of several threads may be in here at once: the last one to leave gives the layers their own forward
        back. Until then a forward that is not in here is computed as ever all the same.
        """
        if not self._products or torch.is_autocast_enabled("cpu"):
            yield
            return
        before, is_counted = _here.owner, False
        try:
            with self._lock:
                self._users += 1
                is_counted = True
                if self._users == 1 and not self.is_owned:
                    self._install()
            _here.owner = self._owner
            yield
        finally:
            _here.owner = before
            with self._lock:
                self._users -= is_counted
                if not self._users and not self.is_owned:
                    self.remove()

    def remove(self) -> None:
        """Give the layers their own forward back."""
        for module, product in self._products:
            if vars(module).get("forward") is product:
                del vars(module)["forward"]

    def _install(self) -> None:
        for module, product in self._products:
            vars(module)["forward"] = product

    def _counters(self) -> list[tuple[int, int]]:
        """Where every weight lies, and how often torch has seen it change."""
        weights = (module.weight for module in self)
        return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]

    def _sampled(self) -> Tensor:
        """A number of almost every row, as bytes: adapters are merged, and embeddings extended, behind the counters."""
        if not self._products:
            return torch.empty(0, device="cpu")
        weights = [module.weight.detach() for module in self]
        return torch.cat([weight.view(-1)[:: weight.shape[1] + 1] for weight in weights]).view(torch.uint8)


def _linear_layers(model: PreTrainedModel, least: int) -> list[nn.Linear]:
    """The layers that torch alone computes: no subclasses, and none that hooks or other forwards have a hand in.

    Nor those whose weight has an adapter merged into it, which peft may take out in the midst of a forward.
    """
    modules = list(model.modules())
    merged = {
        id(m._modules["base_layer"]) for m in modules if "base_layer" in m._modules and getattr(m, "merged", False)
    }
    return [
        module
        for module in modules
        if type(module) is nn.Linear and _is_plain(module, least) and id(module) not in merged
    ]


def _is_plain(module: nn.Linear, least: int) -> bool:
    weight = module._parameters.get("weight")
    return (
        type(weight) is nn.Parameter
        and weight.device.type == "cpu"
        and weight.dtype in WORSE
        and weight.numel() >= least
        and weight.layout is torch.strided
        and weight.is_contiguous()
        and not module._forward_pre_hooks
        and isinstance(vars(module).get("forward"), (Product, NoneType))
    )


def _why_not(model: PreTrainedModel, modules: Sequence[nn.Linear], prepacking: Prepacking, *, forced: bool) -> str:
    if not modules:
        return f"no linear layer that torch alone computes on a CPU has {prepacking.least:,} weights"
    if not torch.backends.mkldnn.enabled:
        return "oneDNN is turned off"
    forwards = [vars(module).get("forward") for module in model.modules()]
    if any(hasattr(forward, "_torchdynamo_orig_callable") for forward in forwards) or any(
        module._compiled_call_impl is not None for module in model.modules()
    ):
        return "its forward is compiled"
    if not forced and (size := _size(modules)) > SHARE * (free := prepacking.free_memory()):
        return f"its copies would take {size / 2**20:,.0f} MiB, and {free / 2**20:,.0f} are free"
    return ""


def _size(modules: Iterable[nn.Linear]) -> int:
    return sum(module.weight.nbytes for module in modules)


def _products(
    modules: Sequence[nn.Linear], owner: object, prepacking: Prepacking
) -> tuple[list[tuple[nn.Linear, Product]], str]:
    """Products of the layers of those shapes where a first one pays; where there are none, why."""
    found: list[tuple[nn.Linear, Product]] = []
    verdicts: dict[tuple[object, ...], str] = {}
    for module in modules:
        shape = (*module.weight.shape, module.weight.dtype, module.bias is None)
        if verdicts.get(shape):
            continue
        try:
            product = prepacking.product(module, owner)
            if shape not in verdicts:
                verdicts[shape] = _fault(module, product, prepacking)
        except FAILURES as error:
            verdicts[shape] = f"torch cannot here: {' '.join(str(error).split())[:120]}"
        if not verdicts[shape]:
            found.append((module, product))
    return found, "" if found else "; ".join(dict.fromkeys(verdicts.values()))


def _fault(module: nn.Linear, product: Product, prepacking: Prepacking) -> str:
    """Why this layer is better left to torch, or nothing."""
    random = torch.Generator().manual_seed(0)
    inputs = [torch.randn((1, rows, module.in_features), generator=random).to(product.dtype) for rows in ROWS]
    if not all(_is_as_exact(module, product, input) for input in inputs):
        return "its products would be less exact"
    seconds = prepacking.seconds
    if sum(seconds(product.multiply, input) - seconds(product.own, input) for input in inputs) > 0:
        return "its products would be slower"
    return ""


def _is_as_exact(module: nn.Linear, product: Product, input: Tensor) -> bool:
    """Whether the kernel rounds as torch does, to the bit or on average."""
    own, ours = product.own(input), product.multiply(input)
    if torch.equal(own, ours):
        return True
    step = max(module.out_features // OUTPUTS, 1)
    bias = None if module.bias is None else module.bias[::step].double()
    truth = linear(input.double(), module.weight[::step].double(), bias)
    errors = [float((each[..., ::step].double() - truth).abs().mean()) for each in (ours, own)]
    return errors[0] <= WORSE[product.dtype] * errors[1]
