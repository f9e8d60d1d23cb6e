"""Engine selection: by name, speed or compressed weights, and the error if an engine cannot run the model."""

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.draft import Logits
from antiphon.accel.engines.openvino.cost import LONG_ROWS, ROWS, measure
from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from antiphon.accel.engines.protocol import SequenceInput
from antiphon.accel.engines.selection import select_engine
from antiphon.accel.engines.torch.cost_store import load, save
from antiphon.accel.model_report import inspect_model
from tests.accel.openvino.builders import engine_of, model_of
from tests.families.table import tiny_model
from tests.tiny import byte_tokenizer

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino import loader
from antiphon.accel.engines.openvino.loader import load_engine
from antiphon.accel.engines.openvino.runtime import supports_precision
from antiphon.accel.engines.openvino.store import (
    GRAPH,
    WEIGHTS,
    Compatibility,
    fingerprint,
    folder_of,
    load_compatibility,
    load_or_convert,
    save_compatibility,
)
from antiphon.accel.files import is_intact
from tests.accel.openvino.builders import graph_of, in_precision

pytestmark = pytest.mark.slow


def setting() -> str:
    """Return the setting (precision and threads) for which compatibility results are stored."""
    return f"f32-{torch.get_num_threads()}"


class ProgressRecorder:
    """Records the reported progress."""

    def __init__(self) -> None:
        self.stages: list[tuple[int, int]] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.stages.append((done, total))


def test_auto_does_not_convert_a_tiny_model() -> None:
    selected = select_engine(tiny_model(), "auto")
    assert selected.engine.name == "torch"
    assert "takes longer than it saves" in selected.reason


def test_an_unknown_engine_is_rejected_before_the_model_is_loaded() -> None:
    with pytest.raises(ValueError, match="There is no engine 'abacus'; choose one of auto, torch, openvino"):
        LanguageModel.from_pretrained("no/such-model", engine="abacus")


@pytest.mark.parametrize(("family", "reason"), [("bloom", "no position_ids"), ("gemma2", "softcap")])
def test_requesting_an_engine_that_cannot_run_the_model_raises_the_reason(family: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"engine is 'openvino', but it cannot run this .*{reason}"):
        select_engine(tiny_model(family), "openvino")


def test_options_that_only_torch_supports_select_torch() -> None:
    assert DecodingOptions(engine="openvino", reproducible=True).engine_choice == "torch"
    assert DecodingOptions(engine="openvino", compiled=True).engine_choice == "torch"
    assert DecodingOptions(engine="openvino").engine_choice == "openvino"


def test_the_second_load_skips_conversion_and_a_damaged_graph_is_never_used() -> None:
    model, progress = model_of("llama", seed=5), ProgressRecorder()
    key = fingerprint(model)
    assert load_engine(model, memory=2**22, report=progress)[0] is not None
    assert progress.stages == [(0, 3), (1, 3), (2, 3)]
    assert load_compatibility(key, setting()) == Compatibility()
    again = ProgressRecorder()
    assert load_engine(model, memory=2**22, report=again)[0] is not None
    assert again.stages == []
    folder = folder_of(key)
    load_or_convert(folder.parent / "other", lambda: graph_of(model_of("llama")))
    for name in (GRAPH, WEIGHTS):  # a folder that does not match its manifest is converted and tested again
        (folder / name).write_bytes((folder.parent / "other" / name).read_bytes())
    assert load_engine(model, memory=2**22, report=again)[0] is not None
    assert again.stages == [(0, 3), (1, 3), (2, 3)]


def test_a_failed_self_test_is_remembered() -> None:
    model = model_of("llama", seed=6)
    key = fingerprint(model)
    load_or_convert(folder_of(key), lambda: graph_of(model_of("llama")))  # a valid graph of another model
    for _ in range(2):
        with pytest.raises(ValueError, match="logits differ from this model's; prefill of a short text"):
            select_engine(model, "openvino")
    assert is_intact(folder_of(key))
    stored: Any = load_compatibility(key, setting())
    assert "logits differ" in stored.failure


def test_auto_does_not_select_a_slower_engine() -> None:
    model = model_of("llama", seed=10)  # a separate model: stored results are shared
    assert load_engine(model, memory=2**22)[0] is not None
    save_compatibility(fingerprint(model), setting(), Compatibility(speedup=0.5, comparisons=3))
    assert load_engine(model, memory=2**22, if_faster=True) == (
        None,
        "OpenVINO's steps take 2.00 times as long as torch's here.",
    )
    assert load_engine(model, memory=2**22)[0] is not None


def test_a_speedup_measured_on_a_busy_machine_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama", seed=12)
    monkeypatch.setattr(loader, "is_credible", lambda cost: False)
    load_engine(model, memory=2**22, if_faster=True)
    assert load_compatibility(fingerprint(model), setting()) == Compatibility("")
    monkeypatch.setattr(loader, "is_credible", lambda cost: True)
    load_engine(model, memory=2**22, if_faster=True)
    stored: Any = load_compatibility(fingerprint(model), setting())
    assert stored.speedup is not None


def test_a_model_stays_on_torch_for_good_only_after_several_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama", seed=14)
    speedups = iter((0.5, 0.25, 64.0))
    monkeypatch.setattr(loader, "_speedup", lambda *_, remeasure: next(speedups))
    engines = [load_engine(model, memory=2**22, if_faster=True)[0] for _ in range(4)]
    assert [each is not None for each in engines] == [False, False, True, True]
    stored: Any = load_compatibility(fingerprint(model), setting())
    assert stored.speedup == pytest.approx(2.0)
    assert stored.comparisons == 3


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": 2}'])
def test_an_unreadable_result_is_ignored(damage: str) -> None:
    save_compatibility("a key", "f32-1", Compatibility("why", 1.5))
    assert load_compatibility("a key", "f32-1") == Compatibility("why", 1.5)
    path = folder_of("a key").with_name("a key-f32-1.json")
    path.write_text(damage)
    assert load_compatibility("a key", "f32-1") is None


PROMPT = "A queen lays as many as two thousand eggs on a summer's day."
PARAMETERS: dict[str, Any] = {"references": ["Bees live in colonies.", PROMPT], "max_new_tokens": 40}
needs_nncf = pytest.mark.skipif(not find_spec("nncf"), reason="nncf is not installed: antiphon[int8]")


@pytest.fixture(scope="module", params=["int8", "int4"])
def compressed(request: pytest.FixtureRequest) -> LanguageModel:
    return LanguageModel(model_of(), byte_tokenizer(), engine="openvino", weights=request.param, memory=2**23)


@needs_nncf
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "seed": 3}, {"num_draft_tokens": 5}], ids=str)
def test_drafts_do_not_change_the_outputs_of_the_compressed_model(
    compressed: LanguageModel, settings: dict[str, Any]
) -> None:
    drafted = compressed.generate(PROMPT, **PARAMETERS, **({"num_draft_tokens": 8} | settings))
    alone = compressed.generate(PROMPT, **PARAMETERS, **(settings | {"drafter": "nothing", "num_draft_tokens": None}))
    assert drafted.tokens == alone.tokens
    assert drafted.steps.drafted > alone.steps.drafted == 0


@needs_nncf
def test_compressed_weights_are_reported_in_summary_and_reason(compressed: LanguageModel) -> None:
    weights = compressed.options.weights
    completion = compressed.generate(PROMPT, max_new_tokens=3)
    assert completion.steps.weights == completion.steps.as_dict()["weights"] == weights
    assert f"with {weights} weights, as requested: a different model" in compressed.selected.reason
    assert f"with {weights} weights" in inspect_model(compressed.model, engine=compressed.options.engine_choice).engine


@needs_nncf
def test_a_wrong_graph_is_rejected_with_compressed_weights_too() -> None:
    model = model_of("llama", seed=8)
    load_or_convert(folder_of(fingerprint(model, "int8")), lambda: graph_of(model_of("llama")))
    with pytest.raises(
        ValueError, match=r"weights is 'int8', .*logits differ from this model's; prefill with compressed"
    ):
        select_engine(model, "openvino-int8")


@needs_nncf
@pytest.mark.parametrize(
    ("family", "dtype"),
    [("mistral", torch.float32), ("gemma3", torch.float32), ("qwen3_moe", torch.float32), ("llama", torch.bfloat16)],
)
def test_other_families_and_half_precision_pass_the_self_test(family: str, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and not supports_precision("bf16"):
        pytest.skip("OpenVINO does not compute in bfloat16 on this processor")
    model = in_precision(tiny_model(family, seed=9), dtype)
    engine, reason = load_engine(model, weights="int8", memory=2**22)
    assert engine is not None, reason


@needs_nncf
def test_requests_that_need_torch_are_rejected(compressed: LanguageModel) -> None:
    compressed.model.train()
    with pytest.raises(ValueError, match="which OpenVINO alone has, and this request needs torch"):
        compressed.generate(PROMPT, max_new_tokens=3)
    compressed.model.eval()
    prefix = PrefixCache()
    assert compressed.generate(PROMPT, prefix=prefix, max_new_tokens=9).tokens == compressed.generate(
        PROMPT, max_new_tokens=9
    ).tokens  # fmt: skip


@pytest.mark.parametrize("options", [{"engine": "torch"}, {"reproducible": True, "engine": "auto"}, {"compiled": True}])
def test_options_that_only_torch_supports_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="weights is 'int8', which OpenVINO alone has; leave out what only torch does"):
        DecodingOptions(weights="int8", **options)


class Counting(OpenVINOEngine):
    """Counts its forward passes by cached tokens and rows."""

    forwards: Counter[tuple[int, int]]

    def forward(self, inputs: Sequence[SequenceInput]) -> list[Logits]:
        self.forwards[inputs[0].sequence.length, 1 + len(inputs[0].draft)] += 1
        return super().forward(inputs)


def test_every_row_count_is_measured_twice_because_the_first_pass_compiles_kernels() -> None:
    plain = engine_of(model_of())
    engine = Counting(plain.graph, memory=2**22)
    engine.forwards = Counter()
    found = measure(engine, contexts=(64, 128), seconds=0.0)
    assert engine.forwards == {(64, rows): 2 for rows in ROWS} | {(128, rows): 2 for rows in LONG_ROWS}
    assert set(found.seconds) == {64, 128}


@pytest.mark.parametrize("number", ["0.25", "0.125"])
def test_shape_change_and_packing_are_stored(tmp_path: Path, number: str) -> None:
    path, key = tmp_path / "cost.json", {"engine": "openvino"}
    save(path, key, StepCost({64: {1: 1.0, 4: 1.5}}, shape_change=0.25, packing=0.125))
    kept = load(path, key)
    assert kept is not None
    assert (kept.seconds, kept.shape_change, kept.packing) == ({64: {1: 1.0, 4: 1.5}}, 0.25, 0.125)
    path.write_text(path.read_text().replace(number, "-1"))
    assert load(path, key) is None
