"""Which engine runs a model: the one that is asked for, or the fastest that says the same. Knows no texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeGuard, cast, get_args

from transformers import PreTrainedModel

from antiphon.accel.engines.openvino.loader import Report, load_engine
from antiphon.accel.engines.protocol import ModelEngine
from antiphon.accel.engines.torch.engine import engine_of

EngineName: TypeAlias = Literal["auto", "torch", "openvino"]
"""What can be asked for: "auto" is OpenVINO where it can run the model, agrees with torch and is faster, else torch."""

WeightsName: TypeAlias = Literal["int8", "int4"]
"""Weights of fewer bits, which OpenVINO alone has: another model, never chosen by itself."""

EngineChoice: TypeAlias = Literal[EngineName, "openvino-int8", "openvino-int4"]
"""An engine, with the weights that were asked for."""

SMALL = 10_000_000
"""Models of fewer parameters are decoded before they would be converted: unless asked, only torch runs them."""

Weights: TypeAlias = tuple[tuple[int, int], ...]
"""Where every weight lies, and how often torch has seen it change."""


@dataclass(frozen=True, slots=True)
class SelectedEngine:
    """The engine of a model, and in a sentence why it is this one."""

    engine: ModelEngine
    reason: str


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was found; None stands for the engine of torch, which keeps this and cannot be freed if it holds itself."""

    engine: ModelEngine | None
    reason: str
    weights: Weights
    memory: int | None

    def of(self, model: PreTrainedModel) -> SelectedEngine:
        return SelectedEngine(self.engine or engine_of(model), self.reason)


def parse_engine_name(name: str) -> EngineName:
    """The engine that a user called ``name``.

    Raises:
        ValueError: there is no engine of that name.
    """
    if name not in get_args(EngineName):
        raise ValueError(f"There is no engine {name!r}; choose one of {', '.join(get_args(EngineName))}.")
    return cast(EngineName, name)


def parse_weights_name(name: str) -> WeightsName:
    """The weights that a user called ``name``.

    Raises:
        ValueError: there are none of that name.
    """
    if name not in get_args(WeightsName):
        raise ValueError(f"There are no weights {name!r}; choose one of {', '.join(get_args(WeightsName))}.")
    return cast(WeightsName, name)


def select_engine(
    model: PreTrainedModel, asked: EngineChoice = "auto", *, memory: int | None = None, report: Report | None = None
) -> SelectedEngine:
    """The engine that runs this model's requests, found once, and again when the model has got other weights.

    On OpenVINO keys and values of all texts take ``memory`` bytes at most. The first time a model is seen on a machine
    it is converted, compared with torch and measured, of which ``report`` is told; the verdict and the converted model
    are kept in the user's cache.

    Raises:
        ValueError: there is no engine of that name; or OpenVINO was asked for and cannot run the model, and why.
    """
    name, _, weights_asked = asked.partition("-")
    parse_engine_name(name)
    if weights_asked:
        parse_weights_name(weights_asked)
    if asked == "torch":
        return SelectedEngine(engine_of(model), "It was asked for.")
    chosen: dict[str, Any] = engine_of(model).selected
    weights = _weights(model)

    def is_current(kept: _Kept | None) -> TypeGuard[_Kept]:
        return kept is not None and kept.weights == weights and memory in (None, kept.memory)

    def find() -> SelectedEngine:
        kept: _Kept | None = chosen.get(asked)
        if not is_current(kept):  # another thread may have been faster
            size = kept.memory if memory is None and kept is not None else memory
            kept = chosen[asked] = _Kept(*_found(model, asked, size, report), weights, size)
        return kept.of(model)

    kept: _Kept | None = chosen.get(asked)
    return kept.of(model) if is_current(kept) else engine_of(model).lock.run(find)


def _found(
    model: PreTrainedModel, asked: EngineChoice, memory: int | None, report: Report | None
) -> tuple[ModelEngine | None, str]:
    weights = asked.partition("-")[2]
    size, is_free = model.num_parameters(), asked == "auto"
    if is_free and size < SMALL:
        return None, f"Converting a model of {size:,} parameters takes longer than it saves."
    opened = load_engine(model, weights=weights, memory=memory, if_faster=is_free, report=report)
    if opened.engine is None and not is_free:
        asking = f"weights is {weights!r}, with which OpenVINO" if weights else "engine is 'openvino', which"
        raise ValueError(f"{asking} cannot run this {type(model).__name__}: {opened.reason}")
    return opened.engine, opened.reason


def _weights(model: PreTrainedModel) -> Weights:
    return tuple((each.data_ptr(), 0 if each.is_inference() else each._version) for each in model.parameters())
