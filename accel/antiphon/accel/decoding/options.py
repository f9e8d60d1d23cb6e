"""How a request is decoded: drafter, rows, determinism, compiled steps. Knows no model, and nothing of sampling."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, cast

from antiphon.accel.drafting.draft import DrafterFactory
from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.engines.selection import EngineChoice, EngineName, WeightsName, parse_engine_name, parse_weights_name

GRAIN = 8
"""Forwards of a fixed number of rows have a multiple of so many."""

DETERMINISTIC_ROWS = 32
"""Rows of the largest draft where forwards have a fixed number of rows and nothing else is asked for."""


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
    """How texts are decoded. Nothing of it changes a text, but for rounding in half precision.

    ``drafter`` is a drafter's name, what makes a fresh one for each request, or "auto": the one that suits the model
    where it runs (see `choose_drafter`).

    ``num_draft_tokens`` fixes how many rows of a draft are verified at most. With None each step verifies those that pay, by what
    forwards of this model cost and by what drafts have been worth: the model is measured once, in under two seconds,
    and the figures are kept in the user's cache. So is its word after each frequent token alone, which drafts use where
    nothing better is known, and for which it is asked once, for some three seconds.

    In half precision, where one rounding decides between two tokens that are equally good, drafts can change which of
    them is said (`certify` measures it). With ``deterministic`` they cannot: every forward after the prefill has the
    same number of rows, 1 + ``num_draft_tokens`` (32) rounded up to a multiple of 8 (or the number that it is), and attends to
    each of them by itself, which costs time. The model is given that attention for each forward alone.

    ``compiled`` steps have fixed shapes and fixed memory: None takes them on a GPU, as CUDA graphs, where they have
    been tried and are faster, False never, and True on any device, out of code that `torch.compile` has made.

    With ``reproducible`` a repeated request gives the same text in half precision too: what is drafted and how many
    rows are verified depend on the request alone, neither on the clock nor on what other requests have taught, and no
    forward is shared with another text. It is cheaper than ``deterministic``, and promises less: the text may part
    from plain decoding's where rounding decides, but always in the same way. (What was measured of the model, once,
    is part of it: another machine may choose other rows.)

    A ``cost`` stands for what forwards of the model cost, which is then neither measured nor corrected by the clock;
    and drafts are calibrated anew for each request.

    The ``engine`` runs the forwards: "torch", "openvino", or with "auto" the faster of the two where both say the same
    (see `antiphon.accel.engines.selection.select_engine`). What OpenVINO does not offer runs on torch all the same: prompts
    with left padding, a cache of the caller's, ``deterministic`` forwards, compiled steps, and BiTA.

    With ``weights`` ("int8" or "int4", extra `int8`) OpenVINO runs another model: that of so many bits to a weight. It
    has words of its own, which drafts change as little as any other model's; nothing of it is proven by `certify`, and
    what OpenVINO does not offer is refused. It is never chosen by itself.

    Raises:
        ValueError: ``num_draft_tokens`` is negative, or with so many a draft does not fit into a deterministic forward; there is no
            such engine, or there are no such weights; or weights are asked for beside what only torch has.
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
        if self.weights is not None and (parse_weights_name(self.weights), self.own_engine) != (self.weights, "openvino"):
            raise ValueError(
                f"weights is {self.weights!r}, which OpenVINO alone has; leave out what only torch does "
                "(deterministic, compiled), and take engine='openvino' or 'auto'."
            )
        if self.num_draft_tokens is not None and (
            not isinstance(self.num_draft_tokens, int) or self.num_draft_tokens < 0
        ):
            raise ValueError(
                f"num_draft_tokens is {self.num_draft_tokens!r}; a draft has 0 rows (plain decoding) or more, or None: what pays."
            )
        if (
            self.num_draft_tokens is not None
            and not isinstance(self.deterministic, bool)
            and 0 < self.deterministic <= self.num_draft_tokens
        ):
            raise ValueError(
                f"deterministic is {self.deterministic}; a forward with {self.num_draft_tokens} draft rows has at least "
                f"{self.num_draft_tokens + 1}."
            )

    @property
    def fixed_rows(self) -> int:
        """How many rows every forward after the prefill has; 0 where that is left to the draft.

        ``True`` gives 1 + ``num_draft_tokens`` (32 where that is None), rounded up to a multiple of 8, a number gives itself: runs
        with different ``num_draft_tokens`` are then comparable too.
        """
        if not isinstance(self.deterministic, bool):
            return self.deterministic
        largest = DETERMINISTIC_ROWS if self.num_draft_tokens is None else self.num_draft_tokens
        return -(-(1 + largest) // GRAIN) * GRAIN if self.deterministic else 0

    @property
    def own_engine(self) -> EngineName:
        """The engine that is asked for: torch, where forwards are asked for that only it has."""
        if self.fixed_rows or self.compiled:
            return "torch"
        return "openvino" if self.weights is not None and self.engine == "auto" else self.engine

    @property
    def runs_on(self) -> EngineChoice:
        """The same, with the weights that are asked for."""
        return self.own_engine if self.weights is None else cast(EngineChoice, f"openvino-{self.weights}")

    def check_certifiable(self) -> None:
        """Refuse weights of which nothing can be proven.

        Raises:
            ValueError: they are not those that were loaded.
        """
        if self.weights is not None:
            raise ValueError(
                f"weights is {self.weights!r}: another model than the one that was loaded, whose forward in torch is "
                "what certificates are made of. Compare with its own text without drafts (drafter='nothing')."
            )

    @property
    def draft_rows(self) -> int | None:
        """How many rows a draft has at most; None: those that pay."""
        fixed = self.fixed_rows
        return min(DETERMINISTIC_ROWS, fixed - 1) if fixed and self.num_draft_tokens is None else self.num_draft_tokens

    @property
    def keywords(self) -> DecodingKeywords:
        """The same as keyword arguments."""
        return cast(DecodingKeywords, {field.name: getattr(self, field.name) for field in fields(self)})

    def with_num_draft_tokens(self, num_draft_tokens: int | None) -> DecodingOptions:
        """The same with another number of rows, unless None is given."""
        return (
            self
            if num_draft_tokens is None
            else replace(self, num_draft_tokens=num_draft_tokens, deterministic=self.fixed_rows or False)
        )


def take_options(arguments: dict[str, Any]) -> DecodingOptions:
    """Take the options out of the arguments of a call that mixes them with others."""
    names = [field.name for field in fields(DecodingOptions) if field.name in arguments]
    return DecodingOptions(**{name: arguments.pop(name) for name in names})
