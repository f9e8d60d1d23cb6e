"""Linear layers over prepacked weights: a second copy of each, in the order in which the CPU's kernels read it.

Torch hands its kernels a weight as it is stored, and they put it in their own order again in every forward: for a few
rows that takes longer than the product. It keeps oneDNN's order when it compiles a model; here a model has it as it is.
Knows weights and rows, and neither texts nor drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import NoneType
from weakref import WeakKeyDictionary

import psutil
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

LEAST = 2**16
"""Weights of fewer numbers stay as they are: calling the kernel takes longer than their product."""

SHARE = 0.5
"""The copies may take so much of the memory that is free."""

ROWS = (1, 2, 33)
"""For so many rows a product is compared."""

OUTPUTS = 256
"""About so many outputs of it are compared with the product in double precision."""

WORSE = {torch.float32: 4.0, torch.bfloat16: 1.1, torch.float16: 1.1}
"""How many times torch's own mean error the kernel's may be, by the precision of the weights. Results in half precision
are rounded sums in single, whose order hardly shows. In single precision it does: on 4,864 inputs torch's own error for
one row was 2.4 times that for four (Zen 5), and the kernel's in between."""

SAMPLES = 64
"""About so many numbers of every weight are looked at again for each request: what is changed behind torch's counters,
as by merging an adapter, shows there."""

GROUPS = [
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
]
"""Where Linux tells a container how much memory it may take, and takes."""

FAILURES = (RuntimeError, AttributeError, ValueError, TypeError)

_choices: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
_prepacked: WeakKeyDictionary[PreTrainedModel, Prepacked] = WeakKeyDictionary()
_lock = Lock()


class Product:
    """What `torch.nn.functional.linear` does with one layer; what the kernel is not made for goes there.

    Raises:
        RuntimeError, AttributeError: torch has no such kernel here.
    """

    def __init__(self, module: nn.Linear) -> None:
        self.weight, self.bias = module.weight, module.bias
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(module.weight.detach())
        self._multiply: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, input: Tensor) -> Tensor:
        """The layer's output for rows of shape (..., inputs)."""
        if input.dtype is not self.weight.dtype or torch.is_grad_enabled():
            return linear(input, self.weight, self.bias)
        return self._multiply(input, self._packed, self.bias, "none", [], "")


class Prepacked:
    """What stands in for a model's linear layers in the forwards that it is `lent` to; the model itself never changes.

    ``reason`` says why nothing does, and is empty otherwise. ``size`` is how many bytes the copies take.
    """

    def __init__(self, model: PreTrainedModel, *, wanted: bool | None = None) -> None:
        self._setting = _setting(model)
        self._products: list[tuple[nn.Linear, Product]] = []
        modules = _linear_layers(model)
        self.reason = "it was declined" if wanted is False else _obstacle(model, modules, forced=bool(wanted))
        if not self.reason:
            try:
                self._products = _products(modules)
                self.reason = "" if self._products else "its products would be less exact"
            except FAILURES as error:
                self.reason = f"torch cannot here: {' '.join(str(error).split())[:120]}"
        self.size = _size(self)
        self._seen = self._places()
        self._samples = [_sample(module.weight.detach()) for module in self]
        self._sampled = _read(self._samples)
        self._users = 0
        self._lock = Lock()

    def __len__(self) -> int:
        """How many layers have such a weight."""
        return len(self._products)

    def __iter__(self) -> Iterator[nn.Linear]:
        """The layers that have one."""
        return (module for module, _ in self._products)

    def is_current(self, model: PreTrainedModel) -> bool:
        """Whether the model still has the weights that were copied: not after training, merging or moving it."""
        return (
            _setting(model) == self._setting
            and all(vars(module).get("forward", product) is product for module, product in self._products)
            and self._places() == self._seen
            and torch.equal(_read(self._samples), self._sampled)
        )

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let the layers be computed by their copies in here, in every thread; under autocast they stay as they are.

        Several forwards may be in here at once: the last one to leave puts the layers back.
        """
        if not self._products or torch.is_autocast_enabled("cpu"):
            yield
            return
        with self._lock:
            self._users += 1
            for module, product in self._products if self._users == 1 else ():
                vars(module)["forward"] = product
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                for module, product in () if self._users else self._products:
                    if vars(module).get("forward") is product:
                        del vars(module)["forward"]

    def _places(self) -> list[tuple[int, int]]:
        """Where every weight lies, and how often torch has seen it change."""
        return [
            (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
            for weight in (module.weight for module in self)
        ]


def prepacked(model: PreTrainedModel) -> Prepacked:
    """The model's prepacked weights, made on the first call and again whenever the model has got others."""
    with _lock:
        known = _prepacked.get(model)
        if known is None or not known.is_current(model):
            known = None
            _prepacked.pop(model, None)  # the copies of what is no more go before others come
            known = _prepacked[model] = Prepacked(model, wanted=choice(model))
        return known


def choice(model: PreTrainedModel) -> bool | None:
    """What `prepack` was last told of this model."""
    return _choices.get(model)


def prepack(model: PreTrainedModel, wanted: bool | None = None) -> Prepacked:
    """Decide whether this model's forwards on a CPU take prepacked weights, as much memory again as its linear layers.

    With None, as if this had never been called, they do where half of the memory that is free has room for them.
    ``True`` does not look at the memory, and ``False`` takes none. Returns what came of it.
    """
    _choices.pop(model, None)
    if wanted is not None:
        _choices[model] = wanted
    _prepacked.pop(model, None)
    return prepacked(model)


def _setting(model: PreTrainedModel) -> tuple[object, ...]:
    return model.device, model.dtype


def _linear_layers(model: PreTrainedModel) -> list[nn.Linear]:
    """The layers that torch itself computes: no subclasses, and none whose forward somebody has put in its place."""
    return [
        module
        for module in model.modules()
        if type(module) is nn.Linear
        and type(module.weight) is nn.Parameter
        and module.weight.device.type == "cpu"
        and module.weight.dtype in WORSE
        and module.weight.numel() >= LEAST
        and isinstance(vars(module).get("forward"), (Product, NoneType))
    ]


def _obstacle(model: PreTrainedModel, modules: Sequence[nn.Linear], *, forced: bool) -> str:
    if not modules:
        return f"no linear layer on a CPU has {LEAST:,} weights in single or half precision"
    if model._compiled_call_impl is not None:
        return "its forward is compiled"
    if not forced and (size := _size(modules)) > SHARE * (free := free_memory()):
        return f"its copies would take {size / 2**20:,.0f} MiB, and {free / 2**20:,.0f} are free"
    return ""


def _size(modules: Iterable[nn.Linear]) -> int:
    return sum(module.weight.nbytes for module in modules)


def free_memory() -> int:
    """How many bytes this process may still take, of the machine's and of its container's."""
    free: int = psutil.virtual_memory().available
    for most, used in GROUPS:
        try:
            free = min(free, int(most.read_text()) - int(used.read_text()))
        except (OSError, ValueError):  # no such group, or no limit: "max"
            continue
    return free


@torch.no_grad()
def _products(modules: Sequence[nn.Linear]) -> list[tuple[nn.Linear, Product]]:
    """A layer of each shape is tried; those of shapes that would be less exact are left out."""
    found: list[tuple[nn.Linear, Product]] = []
    tried: dict[tuple[object, ...], bool] = {}
    for module in modules:
        product = Product(module)
        shape = (*module.weight.shape, module.weight.dtype, module.bias is None)
        if shape not in tried:
            tried[shape] = _is_as_exact(module, product)
        if tried[shape]:
            found.append((module, product))
    return found


def _is_as_exact(module: nn.Linear, product: Product) -> bool:
    """Whether the kernel rounds as torch does, to the bit or on average."""
    random = torch.Generator().manual_seed(0)
    dtype, step = module.weight.dtype, max(module.out_features // OUTPUTS, 1)
    bias = None if module.bias is None else module.bias[::step].double()
    for rows in ROWS:
        input = torch.randn((1, rows, module.in_features), generator=random).to(dtype)
        own, ours = linear(input, module.weight, module.bias), product(input)
        if torch.equal(own, ours):
            continue
        truth = linear(input.double(), module.weight[::step].double(), bias)
        errors = [(each[..., ::step].double() - truth).abs().mean() for each in (ours, own)]
        if not errors[0] <= WORSE[dtype] * errors[1]:
            return False
    return True


def _sample(weight: Tensor) -> Tensor:
    """A view of some of the numbers of a weight, of one dimension."""
    diagonal = weight.diagonal()
    return diagonal[:: max(len(diagonal) // SAMPLES, 1)]


def _read(samples: Sequence[Tensor]) -> Tensor:
    return torch.cat([*samples]) if samples else torch.empty(0)
