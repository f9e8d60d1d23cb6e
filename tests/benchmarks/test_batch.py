"""Batch benchmark: every method decodes the same prompts, and figures are totals of all prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.benchmark.run import Job
from benchmarks.batch.measure import batch_figures, measure_batches
from benchmarks.batch.methods import DEFAULT, BatchRun, batch_methods_by_name

TEXT = "The hill is 84 feet high, and the hill is 84 feet wide; the hill"
JOBS = [Job(tuple(TEXT[start:].encode()), (TEXT,)) for start in (0, 9, 20)]


@dataclass
class ScriptedMethod:
    """A method with scripted outputs and durations."""

    name: str
    texts: tuple[int, ...]
    seconds: Sequence[float]
    is_baseline: bool = False
    asked: list[int] = field(default_factory=list)

    def __call__(self, language_model: Any, jobs: Sequence[Job], limit: int) -> BatchRun:
        self.asked.append(len(jobs))
        return BatchRun(tuple((each,) * limit for each in self.texts[: len(jobs)]), self.seconds[len(self.asked) - 1])


@pytest.mark.exhaustive
def test_every_method_decodes_the_same_prompts_to_the_outputs_of_plain_decoding() -> None:
    pytest.importorskip("openvino_genai")
    model: Any = tiny_model(seed=4)
    language_model = LanguageModel(model, byte_tokenizer(), name="tiny", engine="openvino", memory=2**23)
    measured = measure_batches(
        language_model, JOBS, batch_methods_by_name(None), at_once=2, limit=30, rounds=1, warm_up=False
    )
    shown = batch_figures(measured)
    assert [each["method"] for each in shown] == list(DEFAULT)
    assert [each["is_baseline"] for each in shown] == [False, False, True, True, True, True]
    assert {each["identical"] for each in shown} == {1.0}
    ids = [torch.tensor([job.prompt]) for job in JOBS]
    truth = [model.generate(each, max_new_tokens=30, do_sample=False)[0, each.shape[1] :].tolist() for each in ids]
    assert [list(text) for text in measured[0].outputs] == truth
    assert all(each["seconds"] > 0 for each in shown)
    assert [len(run.outputs) for run in measured[-1].rounds[0]] == [2, 1]


def test_figures_are_medians_of_rounds_summed_over_batches() -> None:
    plain = ScriptedMethod("nothing", (1, 2), [9.0, 4.0, 2.0, 6.0, 2.0, 5.0, 2.0])
    other = ScriptedMethod("openvino-genai", (1, 3), [9.0, 1.0, 1.0, 1.0, 1.0, 9.0, 1.0], is_baseline=True)
    model: Any = None
    measured = measure_batches(model, JOBS, (plain, other), at_once=2, limit=10, rounds=3)
    assert plain.asked == [2, 2, 1, 2, 1, 2, 1]
    slow, fast = batch_figures(measured)
    assert (slow["tokens"], slow["seconds"], slow["tokens_per_s"]) == (30, 7.0, 4.29)
    assert (fast["tokens_per_s"], fast["x_plain"], fast["x_best"], fast["identical"]) == (15.0, 3.5, 1.0, 0.6667)
    assert slow["x_best"] == 0.286
