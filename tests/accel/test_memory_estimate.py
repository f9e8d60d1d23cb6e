"""Memory is estimated from the headers of a checkpoint; a model that does not fit is refused before it is loaded."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import LanguageModel, available_memory, memory_estimate
from antiphon.accel.engines.openvino import opening
from antiphon.accel.memory_estimate import NotEnoughMemoryError, check_memory, estimate_memory
from tests.tiny import save_model, tiny_model

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
LIMIT = 3 * 10**9


def write_sparse_checkpoint(folder: Path, config: dict[str, Any], dtype: str = "BF16") -> None:
    """Write a checkpoint whose file has the right header and size, and no contents on the disk."""
    hidden, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": [words, hidden], "lm_head.weight": [words, hidden]}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in (
            ("self_attn.q_proj", [hidden, hidden]),
            ("self_attn.k_proj", [heads, hidden]),
            ("self_attn.v_proj", [heads, hidden]),
            ("self_attn.o_proj", [hidden, hidden]),
            ("mlp.gate_proj", [inner, hidden]),
            ("mlp.up_proj", [inner, hidden]),
            ("mlp.down_proj", [hidden, inner]),
        ):
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * {"BF16": 2, "F32": 4}[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + end)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama-8b")
    write_sparse_checkpoint(folder, LLAMA_8B)
    return folder


def test_weights_and_cache_are_counted_from_the_headers_in_each_precision(large: Path) -> None:
    found: Any = estimate_memory(large, engine="torch", precision="bfloat16")
    assert abs(found.parameters - 8.03e9) < 1e7
    assert found.weights == 2 * found.parameters
    assert found.cache == 4096 * 32 * 2 * 8 * 128 * 2
    sizes = {name: estimate_memory(large, precision=name) for name in ("float32", "bfloat16", "int8", "int4")}
    totals = [each.total for each in sizes.values() if each is not None]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] < 9e9 < 2 * 8.03e9 < totals[1]


def test_the_refusal_names_the_figures_and_what_would_fit(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_estimate, "available_memory", lambda: 10**10)
    with pytest.raises(NotEnoughMemoryError) as refused:
        check_memory(large, device="cpu", dtype="bfloat16")
    message = str(refused.value)
    assert "8.03 billion weights in bfloat16 16.1 GB" in message
    assert "KV cache of 4,096 tokens 0.5 GB" in message
    assert re.search(r"10\.\d GB of memory are available on this CPU", message)
    if memory_estimate._has_openvino():
        assert "weights='int4'" in message
        assert "weights='int8'" not in message, "it does not fit either"


def test_a_language_model_is_refused_before_its_weights_are_read(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_estimate, "available_memory", lambda: LIMIT)
    with pytest.raises(NotEnoughMemoryError, match="a machine with more memory"):
        LanguageModel.from_pretrained(large, device="cpu")


def test_openvino_needs_memory_for_the_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "available_memory", lambda: LIMIT)
    assert opening.memory_shortage(LIMIT // 2) is None
    assert "needs 3.2 GB for its copies of the weights, and 3.0 GB" in str(opening.memory_shortage(LIMIT))


def test_a_model_that_fits_is_loaded(tmp_path: Path) -> None:
    save_model(tiny_model(), tmp_path)
    assert check_memory(tmp_path, device="cpu") is not None
    assert LanguageModel.from_pretrained(tmp_path, device="cpu").generate("Bees", max_new_tokens=2).tokens


@pytest.mark.parametrize(
    "content", [None, b"", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0[1, 2]  "], ids=["none", "empty", "binary", "list"]
)
def test_files_without_a_valid_header_are_left_to_the_loader(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
        (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert check_memory(tmp_path, device="cpu") is None


def test_the_limits_of_control_groups_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 400000\ninactive_file 250000\n")
    names = ("memory.max", "memory.current", "inactive_file")
    assert available_memory._left(tmp_path, *names) == 550_000
    (tmp_path / "memory.max").write_text("max\n")
    with pytest.raises(ValueError, match="max"):
        available_memory._left(tmp_path, *names)
    monkeypatch.setattr(available_memory, "_group_limits", lambda: iter([12345]))
    assert available_memory.available_memory() == 12345
