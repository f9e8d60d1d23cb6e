"""Every family of models: its verification level, and that drafts change neither its output nor its logits."""

from typing import Any

import pytest
import torch

from antiphon.accel.engines.torch.engine import traits_of
from tests.accel.adversarial_drafters import generate_with_trees
from tests.families.check import DRAFTERS, MODES, TOLERANCE, check_model
from tests.families.table import ALL_FAMILIES, MORE_FAMILIES, STATES, tiny_model
from tests.table_part import part
from tests.tiny import FAMILIES

pytestmark = pytest.mark.slow

LEVELS: dict[str, tuple[str, ...]] = {
    "tree": (
        *FAMILIES, "qwen2", "mistral-full", "gemma", "phi", "gpt_neox", "gptj", "gpt_bigcode", "falcon", "opt", "olmo2",
        "granite", "smollm3", "stablelm", "deepseek_v3", "qwen2-window", "phi3-window", "starcoder2", "gemma2",
        "gpt_oss", "cohere2", "llama4", "phi3-longrope", "llama-longrope", "llama-dynamic", "olmo", "olmoe",
        "flex_olmo", "granitemoe", "granitemoeshared", "deepseek_v2", "qwen2_moe", "phimoe", "glm", "glm4", "glm4_moe",
        "glm4_moe_lite", "seed_oss", "minimax_m2", "ernie4_5", "ernie4_5_moe", "hunyuan_v1_dense", "hunyuan_v1_moe",
        "apertus", "arcee", "ministral3", "helium", "nemotron", "cohere", "bitnet", "solar_open", "hyperclovax",
        "jais2", "olmo3", "granite_swa", "cwm", "exaone4", "exaone_moe", "ministral", "vaultgemma", "gemma4", "gemma3n",
        *STATES,
    ),
    "linear": ("bloom", "falcon-alibi", "mpt", "gpt_neo"),
    "replay": ("kimi_linear",),
    "plain": ("mamba", "jamba", "recurrent_gemma"),
}  # fmt: skip
LEVEL_OF = {family: level for level, families in LEVELS.items() for family in families}
USUAL = (
    "gptj",
    "qwen2-window",
    "llama4",
    "gpt_oss",
    "phi3-longrope",
    "bloom",
    "mamba2",
    "bamba",
    "qwen3_5",
    "lfm3",
    "kimi_linear",
    "jamba",
)
"""The families that `make test` runs: each level, kind of layer, and position that changes with the length."""
SDPA = [family for family in LEVELS["tree"] if family not in ("gptj", "gemma2", "gpt_oss", "mamba2")]
ORACLE_STEPS = {"phi3-longrope": 10, "llama-dynamic": 38} | dict.fromkeys(LEVELS["plain"], 48)
"""Forward passes for 48 tokens with drafts of five correct tokens: 9, or more for families that refuse some drafts."""


def test_every_family_has_an_expected_level() -> None:
    assert sorted(LEVEL_OF) == sorted(ALL_FAMILIES)


@pytest.mark.parametrize("family", part(ALL_FAMILIES, USUAL))
def test_a_family_has_its_expected_level_and_a_reason(family: str) -> None:
    traits = traits_of(tiny_model(family))
    assert traits.level == LEVEL_OF[family], traits.reason
    assert len(traits.reason) > 20


@pytest.mark.parametrize("family", part(ALL_FAMILIES, USUAL))
def test_logits_depend_on_the_order_of_the_tokens(family: str) -> None:
    """If the next token did not depend on the context, wrong masks and positions would pass all tests."""
    text = torch.randint(1, 250, (1, 12), generator=torch.Generator().manual_seed(3))
    swapped = text.clone()
    swapped[0, [-5, -3]] = text[0, [-3, -5]]
    with torch.no_grad():
        model = tiny_model(family)
        one, other = (model(tokens, use_cache=False).logits[0, -1] for tokens in (text, swapped))
    assert float((one - other).abs().max()) > 100 * TOLERANCE


@pytest.mark.parametrize("mode", part(MODES, ("greedy",)))
@pytest.mark.parametrize("family", part(MORE_FAMILIES, USUAL))
def test_drafts_change_neither_output_nor_logits(family: str, mode: str) -> None:
    trials = check_model(tiny_model(family), mode)
    assert list(trials) == list(DRAFTERS)
    for name, trial in trials.items():
        assert trial.same, name
        assert trial.error < TOLERANCE, name
        assert (trial.steps < trial.tokens == 48) == (LEVEL_OF[family] != "plain"), name
    assert trials["oracle"].steps == ORACLE_STEPS.get(family, 9)
    if family in STATES:
        assert trials["random trees"].steps <= 14


@pytest.mark.parametrize("family", part(SDPA, ("llama", "gemma3", "qwen2-window")))
def test_eager_attention_changes_neither_output_nor_logits(family: str) -> None:
    model = tiny_model(family, attn_implementation="eager")
    assert traits_of(model).level == "tree"
    assert check_model(model, "greedy", ("random trees",))["random trees"].passes


@pytest.mark.parametrize(
    "family",
    part(
        [family for family in ALL_FAMILIES if family not in LEVELS["tree"] or family in (*FAMILIES, *STATES)],
        ("llama", "gemma3", "gpt2", "bloom", "mamba2", "qwen3_5", "kimi_linear", "jamba"),
    ),
)
def test_no_family_attends_to_left_padding(family: str) -> None:
    model: Any = tiny_model(family)
    prompt = torch.randint(1, 250, (1, 30), generator=torch.Generator().manual_seed(4))
    padded = torch.cat([torch.full((1, 7), 258), prompt], dim=1)
    options: dict[str, Any] = {
        "attention_mask": torch.cat([torch.zeros(1, 7, dtype=torch.long), torch.ones_like(prompt)], dim=1),
        "max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "use_cache": True,
    }  # fmt: skip
    expected = model.generate(padded, **options)[0].tolist()
    output: Any = generate_with_trees(model, padded, expected, 2, **options)
    assert output[0].tolist() == expected
