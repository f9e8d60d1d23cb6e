"""Options of decoding: drafter, draft tokens, compiled steps, engine. Sampling is set elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, cast

from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.engines.protocol import REPRODUCIBLE_ROWS
from antiphon.accel.engines.selection import (
    EngineChoice,
    EngineName,
    WeightsName,
    parse_engine_name,
    parse_weights_name,
)


class DecodingKeywords(TypedDict, total=False):
    """The fields of `DecodingOptions` as keyword arguments."""

    drafter: str | DrafterFactory
    num_draft_tokens: int | None
    compiled: bool | None
    cost: StepCost | None
    engine: EngineName
    reproducible: bool
    weights: WeightsName | None


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """Options of decoding. Only ``weights`` changes the text; in half precision, rounding can change it, too.

    Attributes:
        drafter: Name of a drafter, a factory that is called for each request, or "auto": the best
            drafter for the model on this machine (`choose_drafter`).
        num_draft_tokens: Maximum number of draft tokens to verify per step; None: adapted to the
            measured cost of forward passes and the acceptance rate so far. For each model,
            measuring takes a few seconds, and computing the bigrams (`ModelEngine.bigrams`) about
            three more. Both results are stored in the user's cache.
        compiled: Whether to use compiled steps, which have fixed shapes and fixed memory. None:
            they are used on a GPU, as CUDA graphs, if a trial shows that they are faster. False:
            never. True: on any device, by `torch.compile`.
        cost: Cost of forward passes to assume. If given, costs are neither measured nor corrected, and acceptance
            rates are learned for each request separately. None: measured.
        engine: "torch", "openvino", or "auto": the faster of the two if they agree
            (`antiphon.accel.engines.selection.select_engine`). Torch also runs requests that need
            one of torch's own features: left padding, the caller's own KV cache, ``reproducible``,
            compiled steps, BiTA.
        reproducible: In half precision, rounding decides between two equally likely tokens. Drafts,
            other requests and the clock can change which of the two is emitted. True prevents this,
            so a repeated request gives the same text. Torch then decodes each request alone. Every
            forward pass after the prefill has 40 rows (at most 39 draft tokens). The attention of
            each row is computed separately, which costs time.
        weights: "int8" or "int4" (extra `int8`): OpenVINO runs a model with weights of 8 or 4 bits.
            Such a model writes other texts than the loaded weights; drafts do not change these
            texts. Requests that need a feature of torch are refused. None: the loaded weights.

    Raises:
        ValueError: ``num_draft_tokens`` is negative; the engine or the weights are unknown; or weights are combined
            with a feature that only torch has.
    """

    drafter: str | DrafterFactory = "blend"
    num_draft_tokens: int | None = None
    compiled: bool | None = None
    cost: StepCost | None = None
    engine: EngineName = "torch"
    reproducible: bool = False
    weights: WeightsName | None = None

    def __post_init__(self) -> None:
        parse_engine_name(self.engine)
        drafts = self.num_draft_tokens
        if self.weights is not None:
            parse_weights_name(self.weights)
            if self.engine_name != "openvino":
                raise ValueError(
                    f"weights is {self.weights!r}, which OpenVINO alone has; leave out what only torch does "
                    "(reproducible, compiled), and take engine='openvino' or 'auto'."
                )
        if drafts is not None and (not isinstance(drafts, int) or drafts < 0):
            raise ValueError(
                f"num_draft_tokens is {drafts!r}; give 0 (plain decoding) or more, or None for as many as pay."
            )

    @property
    def engine_name(self) -> EngineName:
        """The engine to use: torch if another option needs it, else the requested one."""
        if self.reproducible or self.compiled:
            return "torch"
        return "openvino" if self.weights is not None and self.engine == "auto" else self.engine

    @property
    def engine_choice(self) -> EngineChoice:
        """The engine to use, with the requested weights."""
        return self.engine_name if self.weights is None else cast(EngineChoice, f"openvino-{self.weights}")

    @property
    def max_draft_rows(self) -> int | None:
        """Maximum number of rows in a draft; None: the budget adapts it."""
        if not self.reproducible:
            return self.num_draft_tokens
        limit = REPRODUCIBLE_ROWS - 1
        return limit if self.num_draft_tokens is None else min(self.num_draft_tokens, limit)

    @property
    def keywords(self) -> DecodingKeywords:
        """The options as keyword arguments."""
        return cast(DecodingKeywords, {field.name: getattr(self, field.name) for field in fields(self)})

    def with_num_draft_tokens(self, num_draft_tokens: int | None) -> DecodingOptions:
        """Return the options with another number of draft tokens; None keeps the current number."""
        return self if num_draft_tokens is None else replace(self, num_draft_tokens=num_draft_tokens)


def pop_options(arguments: dict[str, Any]) -> DecodingOptions:
    """Remove the decoding options from keyword arguments and return them."""
    names = [field.name for field in fields(DecodingOptions) if field.name in arguments]
    return DecodingOptions(**{name: arguments.pop(name) for name in names})
