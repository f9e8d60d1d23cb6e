"""Exactness: compare drafted outputs with plain ones, certify all, and measure transformers' own numerical noise.

python -m benchmarks.exactness [FILE]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from antiphon.accel.progress import Progress
from antiphon.pipelines.benchmark.jobs import PromptCase, question_case, sample_case
from antiphon.pipelines.benchmark.samples import load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson, Device, EngineOption, Task
from antiphon.pipelines.rendering.tables import result_table
from benchmarks.certificate import Certificate, certify
from benchmarks.program import program

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.accel.engines.selection import EngineName

DEMO_PASSAGES = 3
WAYS = ("plain", "drafted", "undrafted", "other_attention", "reproducible")


@dataclass(frozen=True, slots=True)
class CertifiedOutputs:
    """Certificates of one prompt's outputs, one for each decoding method. A certificate contains the emitted tokens.

    Attributes:
        plain: `model.generate` of transformers.
        drafted: Antiphon with drafts.
        other_attention: `model.generate` with the other attention implementation; torch engine only.
        undrafted: Antiphon without drafts; other engines than torch only.
        reproducible: Antiphon in reproducible mode with drafts, if the model supports it.
        reproducible_undrafted: Antiphon in reproducible mode without drafts.
    """

    plain: Certificate
    drafted: Certificate
    other_attention: Certificate | None = None
    undrafted: Certificate | None = None
    reproducible: Certificate | None = None
    reproducible_undrafted: Certificate | None = None


@dataclass(frozen=True, slots=True)
class Exactness:
    """Results in one dtype: shares of identical outputs, and regrets over all tokens.

    Attributes:
        dtype: Name of the model's dtype.
        outputs: Certified outputs, one entry per prompt.
        refused: Why the model cannot be decoded reproducibly, or None.
        engine: Engine that decoded.
    """

    dtype: str
    outputs: tuple[CertifiedOutputs, ...]
    refused: str | None = None
    engine: EngineName = "torch"

    @property
    def is_kept(self) -> bool:
        """Whether all promises are kept.

        No regret exceeds what is allowed, and in float32 drafted tokens equal those of plain decoding on the same
        engine. In half precision a regret may be as large as the largest one of plain decoding by transformers on these
        prompts, and reproducible outputs do not depend on drafts.
        """
        noise = self._worst("plain") or 0.0
        decoded = [each for out in self.outputs for each in (out.drafted, out.reproducible) if each is not None]
        explained = all(each.holds or (self.dtype != "float32" and each.worst <= noise) for each in decoded)
        reference = "plain" if self.engine == "torch" else "undrafted"
        same = self._share("drafted", reference) == 1 if self.dtype == "float32" else True
        return explained and same and self._share("reproducible", "reproducible_undrafted") in (None, 1)

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as a flat dictionary; None for figures that were not measured."""
        return {
            "dtype": self.dtype,
            "engine": self.engine,
            "prompts": len(self.outputs),
            "tokens": sum(len(out.drafted.tokens) for out in self.outputs),
            "drafted_identical": self._share("drafted", "plain"),
            "drafted_identical_to_undrafted": self._share("drafted", "undrafted"),
            "undrafted_identical": self._share("undrafted", "plain"),
            "other_attention_identical": self._share("other_attention", "plain"),
            "reproducible_identical": self._share("reproducible", "reproducible_undrafted"),
            "reproducible_identical_to_plain": self._share("reproducible", "plain"),
            **{f"worst_ulp_{name}": self._worst(name) for name in WAYS},
            **{f"above_zero_{name}": self._above(name) for name in WAYS},
            "kept": self.is_kept,
            "reproducible_refused": self.refused,
        }

    def _pairs(self, one: str, other: str) -> list[tuple[Certificate, Certificate]]:
        pairs = [(getattr(out, one), getattr(out, other)) for out in self.outputs]
        return [(first, second) for first, second in pairs if first is not None and second is not None]

    def _share(self, one: str, other: str) -> float | None:
        pairs = self._pairs(one, other)
        return sum(first.tokens == second.tokens for first, second in pairs) / len(pairs) if pairs else None

    def _worst(self, name: str) -> float | None:
        return max((first.worst for first, _ in self._pairs(name, name)), default=None)

    def _above(self, name: str) -> float | None:
        """Return the share of emitted tokens whose regret is above zero."""
        regrets = [regret for first, _ in self._pairs(name, name) for regret in first.regrets]
        return round(sum(regret > 0 for regret in regrets) / len(regrets), 6) if regrets else None


def load_cases(
    language_model: LanguageModel,
    file: Path | None,
    *,
    task: str | None = None,
    limit: int | None = None,
    passages: int | None = None,
    progress: Progress | None = None,
) -> list[PromptCase]:
    """Load the prompts of recorded answers, or make prompts from the demo's questions.

    Args:
        language_model: Model whose prompt format is used.
        file: File of recorded answers; None for the demo's questions with retrieved passages.
        task: Only samples of this task.
        limit: Maximum number of prompts.
        passages: Number of passages of newly built prompts, 0 for none. None: recorded prompts as they are, and 3
            passages for the demo's questions.
        progress: Reports building the demo's index.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not a sample, a number is out of range, or no prompt remains.
    """
    if passages is not None and passages < 0:
        raise ValueError(f"passages is {passages}; a question is asked over 0 passages or more.")
    if file is not None:
        return [sample_case(language_model, sample, passages) for sample in load_samples(file, task=task, limit=limit)]
    from antiphon.retrieval import Retriever
    from benchmarks.demo_data import demo_index, demo_questions

    if task is not None or (limit is not None and limit < 1):
        raise ValueError(f"task is {task!r} and limit {limit}; the demo's questions have no tasks, and 1 is the least.")
    count = DEMO_PASSAGES if passages is None else passages
    questions = [each.question for each in demo_questions()][:limit]
    retriever = Retriever.open(demo_index(progress)) if count else None
    return [
        question_case(language_model, each, retriever.search(each, count) if retriever else ()) for each in questions
    ]


def measure_exactness(
    language_model: LanguageModel,
    cases: Sequence[PromptCase],
    *,
    max_new_tokens: int,
    num_draft_tokens: int = 32,
    reproducible: bool = True,
    engine: EngineName = "torch",
    report: Progress | None = None,
) -> Exactness:
    """Decode every prompt by every method and certify each output.

    Args:
        language_model: Model that decodes, in its own dtype.
        cases: Prompts and references.
        max_new_tokens: Maximum number of new tokens per output.
        num_draft_tokens: Maximum number of draft tokens per step.
        reproducible: Whether to measure reproducible mode too. It is measured only on torch, and not in
            float32, because it changes nothing there.
        engine: Engine that decodes.
        report: Called with stage, done and total.

    Raises:
        ValueError: a prompt and ``max_new_tokens`` exceed the context window, or the engine cannot run the model.
    """
    dtype = str(language_model.model.dtype).removeprefix("torch.")
    wants_reproducible = reproducible and dtype != "float32" and engine == "torch"
    refused = _refusal(language_model) if wants_reproducible else None
    outputs = []
    for done, case in enumerate(cases):
        if report is not None:
            report(dtype, done, len(cases))
        prompt = _Prompt(language_model, case, max_new_tokens, num_draft_tokens)
        is_reproducible = wants_reproducible and refused is None
        outputs.append(
            _on_torch(prompt, reproducible=is_reproducible) if engine == "torch" else _on_other(prompt, engine)
        )
    if report is not None:
        report(dtype, len(cases), len(cases))
    return Exactness(dtype, tuple(outputs), refused, engine)


def _refusal(language_model: LanguageModel) -> str | None:
    """Return why the model cannot be decoded reproducibly, or None if it can."""
    from antiphon.accel.engines.torch.engine import engine_of

    engine = engine_of(language_model.model)
    try:
        engine.lock.run(engine.reproducible_traits)
    except ValueError as error:
        return str(error)
    return None


def _on_torch(prompt: _Prompt, *, reproducible: bool) -> CertifiedOutputs:
    from antiphon.accel.drafting.drafters import Nothing
    from antiphon.accel.engines.torch.attention import implementation_of, use_attention

    other = "sdpa" if implementation_of(prompt.model) == "eager" else "eager"
    plain = prompt.plain()
    with use_attention(prompt.model, other):
        other_attention = prompt.plain()
    return CertifiedOutputs(
        plain=plain,
        drafted=prompt.drafted(),
        other_attention=other_attention,
        reproducible=prompt.drafted(reproducible=True) if reproducible else None,
        reproducible_undrafted=prompt.drafted(reproducible=True, drafter=Nothing) if reproducible else None,
    )


def _on_other(prompt: _Prompt, engine: EngineName) -> CertifiedOutputs:
    from antiphon.accel.drafting.drafters import Nothing

    return CertifiedOutputs(
        plain=prompt.plain(),
        drafted=prompt.drafted(engine=engine),
        undrafted=prompt.drafted(engine=engine, drafter=Nothing),
    )


class _Prompt:
    """One prompt, decoded greedily by transformers or by Antiphon; each output is certified."""

    def __init__(
        self, language_model: LanguageModel, case: PromptCase, max_new_tokens: int, num_draft_tokens: int
    ) -> None:
        import torch

        from antiphon.accel.text.messages import encode_prompt

        tokens = encode_prompt(case.prompt, language_model.tokenizer)
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
            "num_draft_tokens": num_draft_tokens,
        }
        self._certificates: dict[tuple[int, ...], Certificate] = {}

    def plain(self) -> Certificate:
        """Decode by transformers."""
        return self._certified(self.model.generate(self.ids, **self.options))

    def drafted(self, **more: Any) -> Certificate:
        """Decode by Antiphon."""
        from antiphon.accel.generate import generate

        return self._certified(generate(self.model, self.ids, **self.drafting, **more, **self.options))

    def _certified(self, output: Any) -> Certificate:
        """Certify an output; equal outputs share a certificate."""
        from antiphon.accel.decoding.model_request import prepare

        tokens = tuple(output[0].tolist())
        if tokens not in self._certificates:
            processors = prepare(self.model, self.ids, _processors, **self.options)  # new, because some keep state
            self._certificates[tokens] = certify(self.model, output, self.ids.shape[1], processors)
        return self._certificates[tokens]


def _processors(model: Any, input_ids: Any, logits_processor: Any, *others: Any, **more: Any) -> Any:
    """Return the logits processors that `generate` prepares."""
    return logits_processor


EXACTNESS = {
    "prompts": "prompts",
    "tokens": "drafted tokens",
    "drafted_identical": "drafted = plain, share",
    "drafted_identical_to_undrafted": "drafted = undrafted on this engine, share",
    "undrafted_identical": "undrafted on this engine = plain, share",
    "other_attention_identical": "plain with other attention = plain, share",
    "reproducible_identical": "reproducible: drafted = undrafted, share",
    "reproducible_identical_to_plain": "reproducible: drafted = plain, share",
    "worst_ulp_plain": "worst regret, plain, ulp",
    "worst_ulp_drafted": "worst regret, drafted, ulp",
    "worst_ulp_undrafted": "worst regret, undrafted on this engine, ulp",
    "worst_ulp_other_attention": "worst regret, other attention, ulp",
    "worst_ulp_reproducible": "worst regret, reproducible, ulp",
    "above_zero_plain": "tokens with a regret, plain",
    "above_zero_drafted": "tokens with a regret, drafted",
    "kept": "promises kept",
}


def exactness_table(model: str, figures: list[dict[str, Any]]) -> Table:
    """Return a table with one row per figure and one column per dtype."""
    columns = {"": "figure"} | {figure["dtype"]: figure["dtype"] for figure in figures}
    rows = [{"": heading} | {figure["dtype"]: figure[key] for figure in figures} for key, heading in EXACTNESS.items()]
    return result_table(f"Exactness of {model}", columns, rows)


def exactness(
    file: Annotated[
        Path | None, typer.Argument(help="Recorded answers as JSONL; default: the demo's documents and questions.")
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="reader, smollm2, a folder or a hub name.")] = "reader",
    dtype: Annotated[
        list[str] | None, typer.Option(help="May be repeated.", show_default="float32 and bfloat16")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens per output.")] = 64,
    num_draft_tokens: Annotated[int, typer.Option(help="Maximum number of draft tokens per step.")] = 32,
    task: Task = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of prompts.")] = None,
    passages: Annotated[
        int | None,
        typer.Option(help="Build new prompts over this many passages; 0: none.", show_default="the recorded prompts"),
    ] = None,
    reproducible: Annotated[bool, typer.Option(help="Measure reproducible mode too.")] = True,
    engine: EngineOption = "torch",
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Compare drafted outputs with plain ones, certify them all, and measure transformers' own noise.

    On other engines than torch, outputs without drafts are compared instead of that noise and of reproducible mode.
    The exit code is 1 if a promise is broken: drafted tokens in float32 differ, a regret exceeds rounding, or a draft
    changed a reproducible output.
    """
    from antiphon.accel.engines.selection import parse_engine_name
    from antiphon.pipelines.cli.index_report import STAGES
    from antiphon.pipelines.cli.preparation import dtype_named, load_language_model

    console.quiet_libraries()
    dtypes = [dtype_named(name) for name in dtype or ("float32", "bfloat16")]
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "num_draft_tokens": num_draft_tokens}
    options |= {"reproducible": reproducible, "engine": parse_engine_name(engine)}
    results = []
    for each in dtypes:
        language_model = load_language_model(model, device=device, dtype=each)
        with console.progress_bars(STAGES) as report:
            cases = load_cases(language_model, file, task=task, limit=limit, passages=passages, progress=report)
            results.append(measure_exactness(language_model, cases, report=report, **options))
    figures = [result.as_dict() for result in results]
    if as_json:
        facts = {"model": model, "max_new_tokens": max_new_tokens, "rows": num_draft_tokens, "dtypes": figures}
        typer.echo(json.dumps(facts))
    else:
        console.out.print(exactness_table(model, figures))
        for figure in figures:
            if figure["reproducible_refused"]:
                console.out.print(figure["reproducible_refused"], style="dim")
    if not all(result.is_kept for result in results):
        raise typer.Exit(1)


app = program(exactness)

if __name__ == "__main__":
    app()
