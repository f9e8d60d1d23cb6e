"""Engine selection: the requested engine, or the fastest one that agrees with torch.

The comparison of OpenVINO with torch is in `openvino/loader.py`. `stored_model.py` opens a model on OpenVINO from an
earlier selection, without this module. A request that the selected engine cannot run goes to torch: see
`decoding/model_request.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, cast, get_args

from antiphon.accel.engines.openvino.compression import require_nncf
from antiphon.accel.engines.torch.checkpoint import WeightsVersion, weights_version

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from antiphon.accel.engines.protocol import ModelEngine
    from antiphon.accel.progress import Progress

EngineName: TypeAlias = Literal["auto", "torch", "openvino"]
"""Engines by name. "auto" is OpenVINO if it can run the model, agrees with torch and is faster; otherwise torch."""

WeightsName: TypeAlias = Literal["int8", "int4"]
"""Compressed weights of OpenVINO. They change the model's output, so "auto" never selects them."""

EngineChoice: TypeAlias = Literal[EngineName, "openvino-int8", "openvino-int4"]
"""An engine name, or OpenVINO with compressed weights."""

MIN_PARAMETERS = 10_000_000
"""Models with fewer parameters stay on torch under "auto": converting them takes longer than decoding."""


@dataclass(frozen=True, slots=True)
class SelectedEngine:
    """The result of `select_engine`.

    Attributes:
        reason: Why the engine was selected, in one sentence.
    """

    engine: ModelEngine
    reason: str


@dataclass(frozen=True, slots=True)
class _CachedSelection:
    """A result of `select_engine`, stored in the model's torch engine.

    Attributes:
        engine: The selected engine. None: the torch engine, which stores this object and must not
            refer to itself.
        weights: Version of the weights for which the engine was selected.
        memory: Requested size of the KV cache in bytes; None for the default.
    """

    engine: ModelEngine | None
    reason: str
    weights: WeightsVersion
    memory: int | None

    def resolve(self, model: PreTrainedModel) -> SelectedEngine:
        from antiphon.accel.engines.torch.engine import engine_of

        return SelectedEngine(self.engine or engine_of(model), self.reason)


def parse_engine_name(name: str) -> EngineName:
    """Check an engine name given by a user, and return it.

    Raises:
        ValueError: There is no engine of this name.
    """
    if name not in get_args(EngineName):
        raise ValueError(f"There is no engine {name!r}; choose one of {', '.join(get_args(EngineName))}.")
    return cast(EngineName, name)


def parse_weights_name(name: str) -> WeightsName:
    """Check a name of compressed weights given by a user, and return it.

    Raises:
        ValueError: There are no compressed weights of this name.
        ImportError: nncf, which compresses weights, is not installed.
    """
    if name not in get_args(WeightsName):
        raise ValueError(f"There are no weights {name!r}; choose one of {', '.join(get_args(WeightsName))}.")
    require_nncf()
    return cast(WeightsName, name)


def select_engine(
    model: PreTrainedModel,
    choice: EngineChoice = "auto",
    *,
    memory: int | None = None,
    report: Progress | None = None,
) -> SelectedEngine:
    """Return the engine that runs a model's requests. It is selected again if the weights change.

    Args:
        memory: Size of OpenVINO's KV cache in bytes; None: the current size, or the default.
        report: Called with the progress when OpenVINO converts, tests and times a model for the
            first time on this machine. Later processes read the results from the user's cache.

    Raises:
        ValueError: ``choice`` is unknown, or OpenVINO was requested and cannot run the model.
    """
    from antiphon.accel.engines.torch.engine import engine_of

    name, _, weights_name = choice.partition("-")
    parse_engine_name(name)
    if weights_name:
        parse_weights_name(weights_name)
    if choice == "torch":
        return SelectedEngine(engine_of(model), "It was requested.")
    cache: dict[str, Any] = engine_of(model).selected
    weights = weights_version(model)

    def is_current(cached: _CachedSelection | None) -> TypeGuard[_CachedSelection]:
        return cached is not None and cached.weights == weights and memory in (None, cached.memory)

    def find() -> SelectedEngine:
        cached: _CachedSelection | None = cache.get(choice)
        if not is_current(cached) and choice == "openvino" and is_current(auto := cache.get("auto")) and auto.engine:
            cached = cache[choice] = auto  # a second engine would hold the weights twice
        if not is_current(cached):  # checked again: another thread may have selected it in the meantime
            size = cached.memory if memory is None and cached is not None else memory
            cached = cache[choice] = _CachedSelection(*_select(model, choice, size, report), weights, size)
        return cached.resolve(model)

    cached: _CachedSelection | None = cache.get(choice)
    return cached.resolve(model) if is_current(cached) else engine_of(model).lock.run(find)


def adopt_engine(model: PreTrainedModel, choice: EngineChoice, found: SelectedEngine, memory: int | None) -> None:
    """Select an engine that is already open, with its lock, for a model that was loaded later.

    Args:
        memory: Requested size of the engine's KV cache in bytes; None for the default.
    """
    from antiphon.accel.engines.torch.engine import engine_of

    own = engine_of(model)
    own.lock = found.engine.lock
    own.selected[choice] = _CachedSelection(found.engine, found.reason, weights_version(model), memory)


def _select(
    model: PreTrainedModel, choice: EngineChoice, memory: int | None, report: Progress | None
) -> tuple[ModelEngine | None, str]:
    """Return the selected engine (None stands for torch) and the reason for the selection."""
    from antiphon.accel.engines.openvino.loader import load_engine

    weights = choice.partition("-")[2]
    size, is_auto = model.num_parameters(), choice == "auto"
    if is_auto and size < MIN_PARAMETERS:
        return None, f"Converting a model of {size:,} parameters takes longer than it saves."
    engine, reason = load_engine(model, weights=weights, memory=memory, if_faster=is_auto, report=report)
    if engine is None and not is_auto:
        requested = f"weights is {weights!r}, but OpenVINO" if weights else "engine is 'openvino', but it"
        raise ValueError(f"{requested} cannot run this {type(model).__name__}: {reason}")
    return engine, reason
