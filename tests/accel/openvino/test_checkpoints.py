"""Checkpoints on OpenVINO: identified by their files, shared in memory, and converted again when they change."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from antiphon.accel.engines.torch.loading import checkpoint_of, load_pretrained
from tests.tiny import save_model, tiny_model

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.conversion import paged_model
from antiphon.accel.engines.openvino.loader import load_engine
from antiphon.accel.engines.openvino.store import fingerprint, folder_of
from antiphon.accel.engines.openvino.weights import SAMPLE, _StoredWeights, attach_weights, large_weights
from antiphon.accel.engines.torch.traits import declared_traits
from tests.accel.openvino.builders import in_precision

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


def load(folder: Path, dtype: str = "float32") -> Any:
    return load_pretrained(folder, dtype=dtype, device="cpu")[0]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_model(in_precision(tiny_model(hidden_size=128), torch.bfloat16), tmp_path / "model")


def test_a_replaced_checkpoint_has_another_fingerprint_and_is_converted_again(saved: Path) -> None:
    stages: list[int] = []

    def start() -> str:
        model = load(saved)
        assert load_engine(model, memory=2**22, report=lambda _, done, total: stages.append(done))[0] is not None
        return fingerprint(model)

    before = start()
    assert start() == before
    assert stages == [0, 1, 2]
    save_model(tiny_model(hidden_size=128, seed=1), saved)
    assert start() != before
    assert stages == [0, 1, 2, 0, 1, 2]
    assert folder_of(before).is_dir()


def test_all_shards_of_a_checkpoint_are_shared(tmp_path: Path) -> None:
    folder = save_model(
        in_precision(tiny_model(hidden_size=128), torch.bfloat16), tmp_path / "shards", max_shard_size="150KB"
    )
    model = load(folder)
    checkpoint: Any = checkpoint_of(model)
    files = [each.path for each in checkpoint.files]
    assert len(files) > 1
    owners = attach_weights(paged_model(model, declared_traits(model)), model, files)
    assert sum(each.nbytes for each in owners) == sum(each.nbytes for each in large_weights(model).values()) / 2
    with Path("/proc/self/maps").open() as maps:
        mapped = {line.split(maxsplit=5)[5].strip() for line in maps if ".safetensors" in line}
    assert mapped >= {str(path) for path in files}


def test_a_stored_weight_that_agrees_with_a_sample_only_is_not_used(tmp_path: Path) -> None:
    stored = torch.zeros(2 * SAMPLE, 4)
    save_file({"weight": stored.bfloat16()}, tmp_path / "model.safetensors")
    weights = _StoredWeights([tmp_path / "model.safetensors"])
    assert weights.find(stored).dtype == torch.bfloat16
    other = stored.clone()
    other[0, 1] = 0.1  # not in the sample, and not exact in 16 bits
    assert weights.find(other) is other
