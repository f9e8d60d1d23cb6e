"""The EAGLE head that `recipes.eagle_head` trains."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from recipes.eagle_head import EagleHead, hidden_states, loss
from tests.tiny import tiny_model


def test_a_head_learns_the_models_next_tokens_and_is_saved_under_vllms_names(tmp_path: Path) -> None:
    model = tiny_model("llama")
    torch.manual_seed(0)
    tokens, hidden = (each[None] for each in hidden_states(model, list(range(40, 72))))
    head = EagleHead(model.config)
    optimizer = torch.optim.AdamW(head.parameters(), lr=5e-3)
    before = loss(head, model, tokens, hidden).item()
    for _ in range(40):
        optimizer.zero_grad()
        loss(head, model, tokens, hidden).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert loss(head, model, tokens, hidden).item() < before / 4
    head.save(tmp_path, model.config)
    weights = load_file(tmp_path / "model.safetensors")
    assert weights["fc.weight"].shape == (model.config.hidden_size, 2 * model.config.hidden_size)
    assert {name.split(".")[0] for name in weights} == {"fc", "layers"}
    assert "layers.0.self_attn.q_proj.weight" in weights
    assert not any("input_layernorm" in name for name in weights), "vLLM's head has none"
