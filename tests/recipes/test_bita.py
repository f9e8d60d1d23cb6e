"""Recipes of BiTA and of an EAGLE head: losses, decoding steps, and saved weights."""

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache

from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.drafters import Bita
from antiphon.accel.engines.torch.bita_weights import BitaWeights
from antiphon.accel.generate import generate
from recipes.bita.answers import OwnAnswer
from recipes.bita.evaluate import WIDEST, ranks, steps
from recipes.bita.initial import initial_bita_weights
from recipes.bita.train import Learner, MaskGroups, mask_logits
from recipes.eagle_head import EagleHead, hidden_states, loss
from tests.tiny import tiny_model

PROMPT = (5, 6, 7)
ANSWER = OwnAnswer(PROMPT, (10, 11, 12, 13, 14))


def loud(model: Any, masks: int = 2) -> BitaWeights:
    """Return random weights a hundred times larger than untrained ones, so that they change the logits clearly."""
    learned = initial_bita_weights(model, prefix=4, masks=masks)
    return replace(learned, keys=100 * learned.keys, values=100 * learned.values, masks=100 * learned.masks)


def one_group(model: Any, learned: BitaWeights, tokens: list[int], masks: int) -> Tensor:
    """Return the masks' logits after these tokens, by one causal forward pass of the tokens and one of the masks.

    The prefix comes first here, as in the paper, and is hidden from the tokens by a second, causal cache.
    """
    plain, whole = DynamicCache(), DynamicCache()
    model(torch.tensor([tokens]), past_key_values=plain)
    layers: list[Any] = plain.layers
    for layer, states in enumerate(layers):
        keys, values = (torch.cat([own[None], cached], dim=2) for own, cached in (
            (learned.keys[layer], states.keys), (learned.values[layer], states.values)))  # fmt: skip
        whole.update(keys, values, layer)
    positions = torch.arange(len(tokens), len(tokens) + masks)[None]
    logits: Tensor = model(
        inputs_embeds=learned.masks[:masks][None], past_key_values=whole, position_ids=positions
    ).logits[0]
    return logits


def test_the_loss_is_that_of_separate_forwards_with_ordinary_causal_masks() -> None:
    model = tiny_model().double()
    learned = loud(model).to_model(model)
    example = MaskGroups(ANSWER, 0, 3)
    separate = [one_group(model, learned, [*PROMPT, *ANSWER.answer[:start]], 2) for start in range(3)]
    torch.testing.assert_close(mask_logits(model, learned, example), torch.cat(separate), atol=1e-9, rtol=1e-9)
    targets = torch.tensor([11, 12, 12, 13, 13, 14])  # group i skips 10 + i, the model's own token
    loss = Learner(model, learned)(example)
    torch.testing.assert_close(loss, cross_entropy(torch.cat(separate).float(), targets, reduction="sum"))


@pytest.mark.parametrize("shape", ["triangle", "chain"])
def test_decoding_takes_the_steps_that_the_evaluation_counts(shape: Any) -> None:
    model = tiny_model(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    learned = initial_bita_weights(model, prefix=4)
    drafter = Bita(learned, WIDEST, shape=shape)
    taken: list[Step] = []
    how: dict[str, Any] = {"num_draft_tokens": 60, "max_new_tokens": 60, "do_sample": False}
    output: Any = generate(model, [*PROMPT], drafter=lambda: drafter, on_step=taken.append, **how)
    answer = OwnAnswer(PROMPT, tuple(output[0, len(PROMPT) :].tolist())[:48])
    emitted = accumulate(len(step.tokens) for step in taken[:-1])
    decoded = sum(tokens < len(answer.answer) for tokens in emitted)  # steps after the answer do not count
    assert decoded == steps(ranks(model, learned, answer), drafter.level_widths)
    assert decoded < 47


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
