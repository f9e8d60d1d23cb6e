"""Exactness: drafted outputs beside plain ones and beside the noise of transformers itself. Measures no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.benchmark.cases import Case
from antiphon.pipelines.progress import Progress

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.accel.certify import Certificate
    from antiphon.accel.engines.selection import EngineName


@dataclass(frozen=True, slots=True)
class Ways:
    """One prompt's certificates, by the way it was decoded; the emitted tokens are in them.

    ``plain`` is `model.generate`, ``drafted`` is ours. On torch ``eager`` is plain decoding with the other attention,
    and ``steady`` and ``steady_plain`` are ours in deterministic mode with and without drafts, where the model can. On
    another engine ``undrafted`` is ours without drafts.
    """

    plain: Certificate
    drafted: Certificate
    eager: Certificate | None = None
    undrafted: Certificate | None = None
    steady: Certificate | None = None
    steady_plain: Certificate | None = None


@dataclass(frozen=True, slots=True)
class Exactness:
    """What came out in one dtype: shares of prompts whose outputs are identical, and regrets over all their tokens."""

    dtype: str
    ways: tuple[Ways, ...]
    refused: str | None = None
    engine: EngineName = "torch"

    @property
    def is_kept(self) -> bool:
        """Whether the promise is: no regret above what is allowed, and in float32 the very tokens of plain decoding on
        the same engine. In half precision a regret may be as large as plain decoding by transformers has itself on
        these prompts, and deterministic texts do not depend on drafts.
        """
        noise = self._worst("plain") or 0.0
        decoded = [each for way in self.ways for each in (way.drafted, way.steady) if each is not None]
        explained = all(each.holds or (self.dtype != "float32" and each.worst <= noise) for each in decoded)
        alone = "plain" if self.engine == "torch" else "undrafted"
        same = self._share("drafted", alone) == 1 if self.dtype == "float32" else True
        return explained and same and self._share("steady", "steady_plain") in (None, 1)

    def as_dict(self) -> dict[str, Any]:
        """All figures under flat names; a share or regret that was not measured is None."""
        names = ("plain", "drafted", "undrafted", "eager", "steady")
        return {
            "dtype": self.dtype,
            "engine": self.engine,
            "prompts": len(self.ways),
            "tokens": sum(len(way.drafted.tokens) for way in self.ways),
            "drafted_identical": self._share("drafted", "plain"),
            "drafted_identical_to_undrafted": self._share("drafted", "undrafted"),
            "undrafted_identical": self._share("undrafted", "plain"),
            "eager_identical": self._share("eager", "plain"),
            "deterministic_identical": self._share("steady", "steady_plain"),
            "deterministic_identical_to_plain": self._share("steady", "plain"),
            **{f"worst_ulp_{name}": self._worst(name) for name in names},
            **{f"above_zero_{name}": self._above(name) for name in names},
            "kept": self.is_kept,
            "deterministic_refused": self.refused,
        }

    def _pairs(self, one: str, other: str) -> list[tuple[Certificate, Certificate]]:
        pairs = [(getattr(way, one), getattr(way, other)) for way in self.ways]
        return [(first, second) for first, second in pairs if first is not None and second is not None]

    def _share(self, one: str, other: str) -> float | None:
        pairs = self._pairs(one, other)
        return sum(first.tokens == second.tokens for first, second in pairs) / len(pairs) if pairs else None

    def _worst(self, name: str) -> float | None:
        return max((first.worst for first, _ in self._pairs(name, name)), default=None)

    def _above(self, name: str) -> float | None:
        """The share of emitted tokens whose regret is above zero."""
        regrets = [regret for first, _ in self._pairs(name, name) for regret in first.regrets]
        return round(sum(regret > 0 for regret in regrets) / len(regrets), 6) if regrets else None


def measure_exactness(
    language_model: LanguageModel,
    cases: Sequence[Case],
    *,
    max_new_tokens: int,
    rows: int = 32,
    deterministic: bool = True,
    engine: EngineName = "torch",
    report: Progress | None = None,
) -> Exactness:
    """Decode every prompt in every way, with the model in the dtype that it has, and certify each output.

    In float32, and where ``deterministic`` is false, the deterministic mode is left out: in the one it adds nothing.
    So it is on another ``engine`` than torch, which it does not concern.

    Raises:
        ValueError: a prompt leaves no room for ``max_new_tokens`` in the context window, or the engine does not run
            the model.
    """
    dtype = str(language_model.model.dtype).removeprefix("torch.")
    is_steady = deterministic and dtype != "float32" and engine == "torch"
    refused = _refusal(language_model, rows) if is_steady else None
    ways = []
    for done, case in enumerate(cases):
        if report is not None:
            report(dtype, done, len(cases))
        prompt = _Prompt(language_model, case, max_new_tokens, rows)
        steady = is_steady and refused is None
        ways.append(_on_torch(prompt, is_steady=steady) if engine == "torch" else _on_another(prompt, engine))
    if report is not None:
        report(dtype, len(cases), len(cases))
    return Exactness(dtype, tuple(ways), refused, engine)


def _refusal(language_model: LanguageModel, rows: int) -> str | None:
    """Why the model cannot be decoded deterministically, if it cannot."""
    from antiphon.accel.decoding.options import DecodingOptions
    from antiphon.accel.engines.torch.engine import engine_of

    engine, fixed_rows = engine_of(language_model.model), DecodingOptions(rows=rows, deterministic=True).fixed_rows
    try:
        engine.lock.take(lambda: engine.deterministic_traits(fixed_rows))
    except ValueError as error:
        return str(error)
    return None


def _on_torch(prompt: _Prompt, *, is_steady: bool) -> Ways:
    from antiphon.accel.drafting.drafters import Nothing
    from antiphon.accel.engines.torch.attention import attending, implementation_of

    other = "sdpa" if implementation_of(prompt.model) == "eager" else "eager"
    plain = prompt.plain()
    with attending(prompt.model, other):
        eager = prompt.plain()
    return Ways(
        plain=plain,
        drafted=prompt.drafted(),
        eager=eager,
        steady=prompt.drafted(deterministic=True) if is_steady else None,
        steady_plain=prompt.drafted(deterministic=True, drafter=Nothing) if is_steady else None,
    )


def _on_another(prompt: _Prompt, engine: EngineName) -> Ways:
    from antiphon.accel.drafting.drafters import Nothing

    return Ways(
        plain=prompt.plain(),
        drafted=prompt.drafted(engine=engine),
        undrafted=prompt.drafted(engine=engine, drafter=Nothing),
    )


class _Prompt:
    """One prompt with its settings: greedy decoding, by transformers or by us, each output certified."""

    def __init__(self, language_model: LanguageModel, case: Case, max_new_tokens: int, rows: int) -> None:
        import torch

        from antiphon.accel.text.messages import prompt_tokens

        tokens = prompt_tokens(case.prompt, language_model.tokenizer)
        window = language_model.context_window
        if window is not None and len(tokens) + max_new_tokens > window:
            raise ValueError(
                f"A prompt of {len(tokens)} tokens and max_new_tokens={max_new_tokens} exceed the context window of "
                f"{language_model.name!r} ({window} tokens); ask for fewer tokens, or give shorter prompts."
            )
        self.model: Any = language_model.model
        self.ids = torch.tensor([tokens], device=self.model.device)
        self.options: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "do_sample": False,
            "num_beams": 1,
            "attention_mask": torch.ones_like(self.ids),
        }
        self.drafting: dict[str, Any] = {
            "references": case.references,
            "tokenizer": language_model.tokenizer,
            "rows": rows,
        }
        self._certificates: dict[tuple[int, ...], Certificate] = {}

    def plain(self) -> Certificate:
        """As transformers decodes it."""
        return self._certified(self.model.generate(self.ids, **self.options))

    def drafted(self, **more: Any) -> Certificate:
        """As we decode it."""
        from antiphon.accel.generate import generate

        return self._certified(generate(self.model, self.ids, **self.drafting, **more, **self.options))

    def _certified(self, output: Any) -> Certificate:
        """The certificate of what was emitted; ways that emitted the same tokens share one."""
        from antiphon.accel.certify import certify
        from antiphon.accel.decoding.request import prepare

        tokens = tuple(output[0].tolist())
        if tokens not in self._certificates:
            processors = prepare(self.model, self.ids, **self.options).processors  # fresh ones: some keep a state
            self._certificates[tokens] = certify(self.model, output, self.ids.shape[1], logits_processor=processors)
        return self._certificates[tokens]
