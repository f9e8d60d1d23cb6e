"""Which engine runs a model: asked for by name, or found out; and what is said where it cannot be."""

from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.engines.selection import select_engine
from antiphon.accel.engines.torch.engine import engine_of as torch_engine_of
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")

from antiphon.accel.engines.openvino.loader import load_engine
from antiphon.accel.engines.openvino.store import GRAPH, RECEIPT, WEIGHTS, fingerprint, folder_of, keep
from antiphon.accel.engines.openvino.compatibility import Compatibility, save_compatibility, load_compatibility
from tests.accel.openvino.builders import graph_of, model_of


def setting() -> str:
    """What verdicts depend on beside the model."""
    return f"f32-{torch.get_num_threads()}"


class Told:
    """Whoever is told of progress."""

    def __init__(self) -> None:
        self.stages: list[tuple[int, int]] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.stages.append((done, total))


def test_a_model_is_torchs_unless_another_engine_is_asked_for() -> None:
    model = tiny_model()
    assert select_engine(model, "torch").engine is torch_engine_of(model)
    assert DecodingOptions().engine == "torch"
    assert LanguageModel(model, byte_tokenizer()).engine is torch_engine_of(model)


def test_by_itself_a_tiny_model_is_not_converted() -> None:
    selected = select_engine(tiny_model(), "auto")
    assert selected.engine.name == "torch"
    assert "takes longer than it saves" in selected.reason


def test_an_engine_that_nobody_knows_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match="There is no engine 'abacus'; choose one of auto, torch, openvino"):
        LanguageModel.from_pretrained("no/such-model", engine="abacus")


@pytest.mark.parametrize(("family", "reason"), [("bloom", "no position_ids"), ("gemma2", "softcap")])
def test_an_engine_that_cannot_run_the_model_is_an_error_that_says_why(family: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"engine is 'openvino', which cannot run this .*{reason}"):
        select_engine(tiny_model(family), "openvino")


def test_where_forwards_are_asked_for_that_only_torch_has_it_is_torch_that_is_selected() -> None:
    assert DecodingOptions(engine="openvino", deterministic=True).runs_on == "torch"
    assert DecodingOptions(engine="openvino", compiled=True).runs_on == "torch"
    assert DecodingOptions(engine="openvino").runs_on == "openvino"


def test_the_second_start_is_quick_and_a_wrong_graph_is_never_used() -> None:
    model, told = model_of("llama", seed=5), Told()
    key = fingerprint(model)
    opened = load_engine(model, memory=2**22, report=told)
    assert opened.engine is not None
    assert told.stages == [(0, 3), (1, 3), (2, 3)]
    assert load_compatibility(key, setting()) == Compatibility()
    again = Told()
    assert load_engine(model, memory=2**22, report=again).engine is not None
    assert again.stages == []
    folder = folder_of(key)
    keep(folder.parent / "other", graph_of(model_of("llama")))
    for name in (GRAPH, WEIGHTS):  # a folder that is not what its receipt says is made anew, and tried anew
        (folder / name).write_bytes((folder.parent / "other" / name).read_bytes())
    assert load_engine(model, memory=2**22, report=again).engine is not None
    assert again.stages == [(0, 3), (1, 3), (2, 3)]


def test_what_does_not_agree_is_refused_by_any_name_and_at_the_next_start_too() -> None:
    model = model_of("llama", seed=6)
    key = fingerprint(model)
    keep(folder_of(key), graph_of(model_of("llama")))  # another model's graph, whole as it is
    for _ in range(2):
        with pytest.raises(ValueError, match="does not say what this model says; the prefill of a short text"):
            select_engine(model, "openvino")
    assert (folder_of(key) / RECEIPT).is_file()
    known: Any = load_compatibility(key, setting())
    assert "does not say" in known.obstacle


def test_an_engine_that_is_slower_is_not_taken_by_itself_and_says_so() -> None:
    model = model_of("llama", seed=10)  # which no other test opens: all workers share verdicts
    assert load_engine(model, memory=2**22).engine is not None
    save_compatibility(fingerprint(model), setting(), Compatibility(ratio=0.5))
    opened = load_engine(model, memory=2**22, if_faster=True)
    assert opened.engine is None
    assert opened.reason == "OpenVINO's steps take 2.00 times as long as torch's here."
    assert load_engine(model, memory=2**22).engine is not None


def test_faster_is_what_was_measured() -> None:
    model = model_of("llama", seed=7)
    load_engine(model, memory=2**22, if_faster=True)
    known = load_compatibility(fingerprint(model), setting())
    assert known is not None
    assert known.ratio is not None
    assert known.ratio > 0
    assert torch_engine_of(model).scheduler is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"tried": 2}'])
def test_a_verdict_that_cannot_be_read_is_none(damage: str) -> None:
    save_compatibility("a key", "f32-1", Compatibility("why", 1.5))
    assert load_compatibility("a key", "f32-1") == Compatibility("why", 1.5)
    path = folder_of("a key").with_name("a key-f32-1.json")
    path.write_text(damage)
    assert load_compatibility("a key", "f32-1") is None
