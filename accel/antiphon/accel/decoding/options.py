"""How a request is decoded: drafter, draft tokens, determinism, compiled steps, engine. Independent of sampling."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, cast

from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.engines.selection import (
    EngineChoice,
    EngineName,
    WeightsName,
    parse_engine_name,
    parse_weights_name,
)

ROW_MULTIPLE = 8
"""The number of rows in deterministic forward passes is rounded up to a multiple of this, unless the user sets it."""

DETERMINISTIC_DRAFT_TOKENS = 32
"""Maximum number of draft tokens in deterministic decoding if ``num_draft_tokens`` is None."""


class DecodingKeywords(TypedDict, total=False):
    """The fields of `DecodingOptions` as keyword arguments."""

    drafter: str | DrafterFactory
    num_draft_tokens: int | None
    deterministic: bool | int
    compiled: bool | None
    cost: StepCost | None
    engine: EngineName
    reproducible: bool
    weights: WeightsName | None


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How requests are decoded. No option changes a text, except by rounding in half precision and by ``weights``.

    Attributes:
        drafter: Name of a drafter, a factory that is called for each request, or "auto": the best one for the model on
            this machine (`choose_drafter`).
        num_draft_tokens: Maximum number of draft tokens to verify per step; None: adapted to
            the measured cost of forward passes and the acceptance rate so far. Measuring takes seconds per
            model, and about three more for its bigrams (see `ModelEngine.bigrams`); the user's cache stores both.
        deterministic: In half precision, where rounding decides between two equally likely tokens, drafts can change
            which one is emitted. If True, they cannot: every forward pass after the prefill
            has the same number of rows, 1 + ``num_draft_tokens`` (32) rounded up to a multiple of 8, and computes the
            attention of each row by itself, which costs time. A number sets the number of rows.
        compiled: Whether to use compiled steps, which have fixed shapes and fixed memory. None: on a GPU, as CUDA
            graphs, if a trial shows that they are faster; False: never; True: on any device, by `torch.compile`.
        cost: Cost of forward passes to assume; it is then neither measured nor corrected by the clock, and acceptance
            rates are learned for each request separately. None: measured.
        engine: "torch", "openvino", or "auto": the faster of the two if they agree
            (`antiphon.accel.engines.selection.select_engine`). Torch also runs requests that need a feature
            which only torch has: left padding, the caller's own KV cache, ``deterministic``, compiled steps, BiTA.
        reproducible: A repeated request gives the same text in half precision too. Drafts and their number depend on
            the request alone, neither on the clock nor on other requests, and no forward pass is shared. It costs less
            than ``deterministic`` and guarantees less: if rounding decides between two tokens, the text may differ from
            plain decoding. One machine always gives the same text; another one measures other costs.
        weights: "int8" or "int4" (extra `int8`): OpenVINO runs a model with weights of 8 or 4 bits. This is
            a different model with different texts; drafts do not change them either. Requests that need a feature of
            torch are refused. None: the loaded weights.

    Raises:
        ValueError: ``num_draft_tokens`` is negative or does not fit into a deterministic forward pass; the engine or
            the weights are unknown; or weights are combined with a feature that only torch has.
    """

    drafter: str | DrafterFactory = "blend"
    num_draft_tokens: int | None = None
    deterministic: bool | int = False
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
                    "(deterministic, compiled), and take engine='openvino' or 'auto'."
                )
        if drafts is not None and (not isinstance(drafts, int) or drafts < 0):
            raise ValueError(
                f"num_draft_tokens is {drafts!r}; give 0 (plain decoding) or more, or None for as many as pay."
            )
        if drafts is not None and not isinstance(self.deterministic, bool) and 0 < self.deterministic <= drafts:
            raise ValueError(
                f"deterministic is {self.deterministic}; a forward with {drafts} draft rows has at least {drafts + 1}."
            )

    @property
    def fixed_rows(self) -> int:
        """Number of rows of every forward pass after the prefill; 0 if not deterministic.

        If ``deterministic`` is True: 1 + ``num_draft_tokens`` (32 if that is None), rounded up to a multiple of 8. If
        it is a number: that number, so that runs with different ``num_draft_tokens`` can be compared.
        """
        if not isinstance(self.deterministic, bool):
            return self.deterministic
        largest = DETERMINISTIC_DRAFT_TOKENS if self.num_draft_tokens is None else self.num_draft_tokens
        return -(-(1 + largest) // ROW_MULTIPLE) * ROW_MULTIPLE if self.deterministic else 0

    @property
    def engine_name(self) -> EngineName:
        """The engine to use: torch if another option needs it, else the requested one."""
        if self.fixed_rows or self.compiled:
            return "torch"
        return "openvino" if self.weights is not None and self.engine == "auto" else self.engine

    @property
    def engine_choice(self) -> EngineChoice:
        """The engine to use, with the requested weights."""
        return self.engine_name if self.weights is None else cast(EngineChoice, f"openvino-{self.weights}")

    @property
    def max_draft_rows(self) -> int | None:
        """Maximum number of rows in a draft; None: the budget adapts it."""
        fixed = self.fixed_rows
        is_open = fixed and self.num_draft_tokens is None
        return min(DETERMINISTIC_DRAFT_TOKENS, fixed - 1) if is_open else self.num_draft_tokens

    @property
    def keywords(self) -> DecodingKeywords:
        """The options as keyword arguments."""
        return cast(DecodingKeywords, {field.name: getattr(self, field.name) for field in fields(self)})

    def with_num_draft_tokens(self, num_draft_tokens: int | None) -> DecodingOptions:
        """Return the options with another number of draft tokens, in forward passes of the same number of rows.

        Args:
            num_draft_tokens: The number for one request; None: keep this one.
        """
        if num_draft_tokens is None:
            return self
        return replace(self, num_draft_tokens=num_draft_tokens, deterministic=self.fixed_rows or False)


def pop_options(arguments: dict[str, Any]) -> DecodingOptions:
    """Remove the decoding options from keyword arguments and return them."""
    names = [field.name for field in fields(DecodingOptions) if field.name in arguments]
    return DecodingOptions(**{name: arguments.pop(name) for name in names})
