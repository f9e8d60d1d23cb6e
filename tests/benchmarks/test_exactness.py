"""The exactness benchmark: figures of all ways of decoding, and broken promises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.engines.openvino.runtime import is_installed
from antiphon.accel.engines.torch.attention import implementation_of
from antiphon.accel.generate import generate
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines.benchmark.jobs import PromptCase, question_case
from antiphon.retrieval import Retriever
from benchmarks import exactness
from benchmarks.certificate import Certificate, certify
from benchmarks.exactness import CertifiedOutputs, Exactness, load_cases, measure_exactness
from tests.pipelines.recorded import run_program

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

QUESTION = "How many eggs does a queen lay?"
SAID = "The museum stands on the hill above the river."


def recorded(folder: Path, count: int) -> Path:
    row = {"task": "rag", "query": "?", "references": [SAID], "response": SAID}
    rows = [row | {"id": str(number), "prompt": f"{number}: {SAID}"} for number in range(count)]
    path = folder / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_all_ways_of_decoding_are_measured(tiny_folder: Path, tmp_path: Path) -> None:
    arguments = (recorded(tmp_path, 3), "--model", tiny_folder, "--limit", 2)
    shown = run_program(exactness.app, *arguments, "--max-new-tokens", 16, "--json")
    assert shown.exit_code == 0, shown.stderr
    single, double = json.loads(shown.stdout)["dtypes"]
    assert (single["dtype"], double["dtype"]) == ("float32", "bfloat16")
    for figure in (single, double):
        assert (figure["prompts"], figure["tokens"], figure["kept"]) == (2, 32, True)
        assert figure["worst_ulp_drafted"] is not None
    assert single["drafted_identical"] == 1
    assert single["reproducible_identical"] is single["worst_ulp_reproducible"] is None
    assert double["reproducible_identical"] == 1
    assert double["worst_ulp_reproducible"] <= 2


@pytest.mark.skipif(not is_installed(), reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")
def test_another_engine_is_held_against_itself_without_drafts_and_against_transformers(
    tiny_folder: Path, tmp_path: Path
) -> None:
    arguments = (recorded(tmp_path, 2), "--model", tiny_folder, "--dtype", "float32")
    shown = run_program(exactness.app, *arguments, "--engine", "openvino", "--max-new-tokens", 16, "--json")
    assert shown.exit_code == 0, shown.stderr
    (figure,) = json.loads(shown.stdout)["dtypes"]
    assert (figure["engine"], figure["prompts"], figure["tokens"], figure["kept"]) == ("openvino", 2, 32, True)
    assert figure["drafted_identical_to_undrafted"] == figure["undrafted_identical"] == 1
    assert figure["worst_ulp_undrafted"] is not None
    assert figure["worst_ulp_other_attention"] is figure["worst_ulp_reproducible"] is None


def test_the_table_has_a_column_for_each_precision(tiny_folder: Path, tmp_path: Path) -> None:
    arguments = (recorded(tmp_path, 1), "--model", tiny_folder, "--dtype", "float32")
    shown = run_program(exactness.app, *arguments, "--max-new-tokens", 4)
    assert shown.exit_code == 0, shown.stderr
    assert "drafted = plain, share" in shown.stdout
    assert "bfloat16" not in shown.stdout


def test_recorded_and_asked_prompts_bring_their_references(
    tmp_path: Path, retriever: Retriever, tiny: LanguageModel
) -> None:
    file = recorded(tmp_path, 2)
    assert load_cases(tiny, file, limit=1) == [PromptCase(f"0: {SAID}", (SAID,))]
    (alone, _) = load_cases(tiny, file, passages=0)
    assert alone == PromptCase(({"role": "user", "content": "?"},), ())
    (again, _) = load_cases(tiny, file, passages=1)
    assert again.references == (SAID,)
    assert SAID in str(again.prompt)
    assert "0:" not in str(again.prompt)
    found = retriever.search(QUESTION, 2)
    case = question_case(tiny, QUESTION, found)
    assert case.references == tuple(passage.text for passage in found)
    assert QUESTION in str(case.prompt)
    with pytest.raises(ValueError, match="passages is -1"):
        load_cases(tiny, file, passages=-1)


def test_the_model_attends_as_before_when_it_is_measured() -> None:
    model = LanguageModel(tiny_model(attn_implementation="eager").bfloat16(), byte_tokenizer())
    measure_exactness(model, [PromptCase(SAID, (SAID,))], max_new_tokens=4)
    assert implementation_of(model.model) == "eager"


def test_a_prompt_longer_than_the_context_window_is_refused(tiny: LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"exceed the context window of 'tiny' \(1024 tokens\)"):
        measure_exactness(tiny, [PromptCase(SAID * 30, ())], max_new_tokens=4)


def certificate(*tokens: int, regret: float = 0.0) -> Certificate:
    return Certificate(tokens, (0.0,) * (len(tokens) - 1) + (regret,), 2.0)


def test_a_broken_promise_is_detected() -> None:
    one, other = certificate(1, 2, 3), certificate(1, 2, 4)
    kept = CertifiedOutputs(plain=one, drafted=one, other_attention=other)
    assert Exactness("float32", (kept,)).is_kept
    assert Exactness("float32", (kept,)).as_dict()["other_attention_identical"] == 0
    differing = replace(kept, drafted=other)
    assert not Exactness("float32", (kept, differing)).is_kept
    assert Exactness("bfloat16", (kept, differing)).is_kept
    assert Exactness("bfloat16", (kept, differing)).as_dict()["drafted_identical"] == 0.5
    wrong = replace(kept, drafted=certificate(1, 2, 3, regret=9.0))
    assert not Exactness("bfloat16", (kept, wrong)).is_kept
    assert Exactness("bfloat16", (kept, wrong)).as_dict()["above_zero_drafted"] == round(1 / 6, 6)
    noisy = replace(wrong, plain=certificate(1, 2, 3, regret=9.0))
    assert Exactness("bfloat16", (kept, noisy)).is_kept, "plain decoding is no better"
    assert not Exactness("bfloat16", (kept, replace(noisy, drafted=certificate(1, 2, 3, regret=9.5)))).is_kept
    assert not Exactness("float32", (kept, noisy)).is_kept
    parted = CertifiedOutputs(plain=one, drafted=other, undrafted=other)
    assert Exactness("float32", (parted,), engine="openvino").is_kept, "at a tie with torch"
    assert not Exactness("float32", (replace(parted, undrafted=one),), engine="openvino").is_kept
    assert not Exactness("float32", (parted,)).is_kept
    moved = replace(kept, reproducible=one, reproducible_undrafted=other)
    assert not Exactness("bfloat16", (moved,)).is_kept


def test_the_embedded_model_is_reproducible_and_certified_in_half_precision(smollm2_folder: Path) -> None:
    """A real model of thirty layers rounds much more than a tiny one; an earlier self-test therefore refused it."""
    from antiphon.accel.drafting.drafters import Nothing
    from antiphon.accel.testing.drafters import OracleDrafter, RandomTreeDrafter, WrongDrafter

    language_model = LanguageModel.from_pretrained(smollm2_folder, dtype=torch.bfloat16, engine="torch")
    model = language_model.model
    prompt = language_model.tokenizer("The history of bees is long.", return_tensors="pt").input_ids
    options: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "attention_mask": torch.ones_like(prompt)}

    def text(drafter: Any) -> list[int]:
        output = generate(
            model, prompt, drafter=drafter, num_draft_tokens=7, reproducible=True, pad_token_id=2, **options
        )
        return list(output[0].tolist())

    plain = text(Nothing)
    for drafter in (RandomTreeDrafter(plain, 1, 49152), OracleDrafter(plain, 3), WrongDrafter(plain, 3)):
        assert text(lambda drafter=drafter: drafter) == plain
    assert certify(model, torch.tensor([plain]), prompt.shape[1]).holds
