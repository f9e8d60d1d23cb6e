"""The table of model families: name in transformers, and the configuration that makes it tiny."""

from typing import Any

from transformers import PreTrainedModel

from tests import tiny
from tests.tiny import FAMILIES, VOCAB_SIZE, Family

_SHAPE, _HEADS, _GPT, _GEMMA = (FAMILIES[family][1] for family in ("llama", "qwen3", "gpt2", "gemma3"))
_WINDOW = {"sliding_window": 12}
_MIXED = _WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}
_LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}  # fmt: skip
_DEEP = {
    "first_k_dense_replace": 1, "moe_intermediate_size": 48, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
_NESTED: dict[str, Any] = {
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 12,
    "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB_SIZE,
}  # fmt: skip
_DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
_SWITCH = 52
"""Position where rotary frequencies change: in the middle of a text of 40 prompt tokens and 48 new ones."""
_LONGROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "long_factor": [4.0] * 8,
        "short_factor": [1.0] * 8,
        "original_max_position_embeddings": _SWITCH,
    },
    "max_position_embeddings": 4 * _SWITCH,
}
_DYNAMIC: dict[str, Any] = {
    "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "max_position_embeddings": _SWITCH,
}

MORE_FAMILIES: dict[str, Family] = {
    # full attention
    "qwen2": ("qwen2", _SHAPE),
    "mistral-full": ("mistral", _SHAPE | {"sliding_window": None}),
    "gemma": ("gemma", _HEADS),
    "phi": ("phi", _SHAPE),
    "gpt_neox": ("gpt_neox", _SHAPE),
    "gptj": ("gptj", _GPT | {"rotary_dim": 8}),
    "gpt_bigcode": ("gpt_bigcode", _GPT),
    "falcon": ("falcon", _SHAPE),
    "opt": ("opt", _SHAPE | {"ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.08}),
    "olmo2": ("olmo2", _SHAPE),
    "granite": ("granite", _SHAPE),
    "smollm3": ("smollm3", _SHAPE | {"no_rope_layers": [1, 0]}),
    "stablelm": ("stablelm", _SHAPE),
    "deepseek_v3": ("deepseek_v3", _SHAPE | _LATENT | _DEEP | {"n_group": 2, "topk_group": 1}),
    "olmo": ("olmo", _SHAPE),
    "olmoe": ("olmoe", _SHAPE | _ROUTED),
    "flex_olmo": ("flex_olmo", _SHAPE | _ROUTED),
    "granitemoe": ("granitemoe", _SHAPE | _EXPERTS),
    "granitemoeshared": ("granitemoeshared", _SHAPE | _EXPERTS | {"shared_intermediate_size": 48}),
    "deepseek_v2": ("deepseek_v2", _SHAPE | _LATENT | _DEEP | {"n_group": 2, "topk_group": 1}),
    "qwen2_moe": ("qwen2_moe", _SHAPE | _ROUTED | {"shared_expert_intermediate_size": 48}),
    "phimoe": ("phimoe", _SHAPE | _EXPERTS),
    "glm": ("glm", _HEADS),
    "glm4": ("glm4", _HEADS),
    "glm4_moe": ("glm4_moe", _HEADS | _DEEP),
    "glm4_moe_lite": ("glm4_moe_lite", _SHAPE | _LATENT | _DEEP),
    "seed_oss": ("seed_oss", _HEADS),
    "minimax_m2": ("minimax_m2", _HEADS | _EXPERTS),
    "ernie4_5": ("ernie4_5", _HEADS),
    "ernie4_5_moe": ("ernie4_5_moe", _SHAPE | {
        "moe_intermediate_size": 48, "moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1,
    }),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", _HEADS),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", _HEADS | {"num_experts": 4, "moe_topk": 2}),
    "apertus": ("apertus", _SHAPE),
    "arcee": ("arcee", _HEADS),
    "ministral3": ("ministral3", _HEADS),
    "helium": ("helium", _HEADS),
    "nemotron": ("nemotron", _HEADS),
    "cohere": ("cohere", _SHAPE | {"logit_scale": 1.0}),
    "bitnet": ("bitnet", _SHAPE),
    "solar_open": ("solar_open", _HEADS | _DEEP),
    "hyperclovax": ("hyperclovax", _SHAPE),
    "jais2": ("jais2", _HEADS),
    # windows and chunks
    "qwen2-window": ("qwen2", _SHAPE | _MIXED | {"use_sliding_window": True}),
    "phi3-window": ("phi3", _SHAPE | _WINDOW),
    "starcoder2": ("starcoder2", _SHAPE | _WINDOW),
    "gemma2": ("gemma2", _GEMMA),
    "gpt_oss": ("gpt_oss", _HEADS | _MIXED | _EXPERTS),
    "cohere2": ("cohere2", _SHAPE | _MIXED | {"logit_scale": 1.0}),
    "olmo3": ("olmo3", _SHAPE | _MIXED),
    "granite_swa": ("granite_swa", _SHAPE | _MIXED),
    "cwm": ("cwm", _HEADS | _MIXED),
    "exaone4": ("exaone4", _SHAPE | _MIXED),
    "exaone_moe": ("exaone_moe", _HEADS | _ROUTED | _MIXED),
    "ministral": ("ministral", _HEADS | _MIXED),
    "vaultgemma": ("vaultgemma", _HEADS | _MIXED | {"query_pre_attn_scalar": 16}),
    "gemma4": ("gemma4_text", _HEADS | _NESTED | {"global_head_dim": 16}),
    "gemma3n": ("gemma3n_text", _HEADS | _NESTED | {
        "intermediate_size": [96] * 4, "activation_sparsity_pattern": [0.0] * 4, "laurel_rank": 8,
    }),
    "llama4": ("llama4_text", _HEADS | {
        "num_hidden_layers": 3, "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
        "attention_chunk_size": 16, "no_rope_layers": [1, 0, 1], "intermediate_size_mlp": 96, "num_local_experts": 4,
    }),
    # rotary frequencies that depend on the length of the text
    "phi3-longrope": ("phi3", _SHAPE | _LONGROPE | {"original_max_position_embeddings": _SWITCH}),
    "llama-longrope": ("llama", _SHAPE | _LONGROPE),
    "llama-dynamic": ("llama", _SHAPE | _DYNAMIC),
    # positions that a tree cannot set: ALiBi, and models that build their own causal mask
    "bloom": ("bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "falcon-alibi": ("falcon", _SHAPE | {"alibi": True}),
    "mpt": ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512}),
    "gpt_neo": ("gpt_neo", {
        "hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
        "window_size": 16,
    }),
    # recurrent and convolutional state
    "mamba2": ("mamba2", {
        "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1,
        "chunk_size": 16,
    }),
    "zamba2": ("zamba2", _SHAPE | {
        "num_key_value_heads": 4, "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"],
        "mamba_d_state": 16, "n_mamba_heads": 8, "chunk_size": 16, "adapter_rank": 8, "use_mem_rope": True,
    }),
    "qwen3_next": ("qwen3_next", _HEADS | _ROUTED | _DELTA | {"shared_expert_intermediate_size": 48}),
    "bamba": ("bamba", _SHAPE | {
        "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16,
    }),
    "lfm2": ("lfm2", _SHAPE | {
        "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 16,
    }),
    "qwen3_5": ("qwen3_5_text", _HEADS | _DELTA),
    "qwen3_5_moe": ("qwen3_5_moe_text", _HEADS | _ROUTED | _DELTA | {"shared_expert_intermediate_size": 48}),
    "olmo_hybrid": ("olmo_hybrid", _SHAPE | _DELTA | {"num_key_value_heads": 4}),
    "granitemoehybrid": ("granitemoehybrid", _SHAPE | _EXPERTS | {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16,
        "mamba_chunk_size": 16, "shared_intermediate_size": 48,
    }),
    "nemotron_h": ("nemotron_h", _HEADS | {
        "layers_block_type": ["mamba", "mlp", "attention", "mamba", "moe"], "ssm_state_size": 16, "mamba_num_heads": 8,
        "mamba_head_dim": 16, "n_groups": 2, "chunk_size": 16, "n_routed_experts": 4, "moe_intermediate_size": 48,
        "moe_shared_expert_intermediate_size": 48,
    }),
    "falcon_h1": ("falcon_h1", _SHAPE | {
        "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16,
        "mamba_chunk_size": 16,
    }),
    "lfm2_moe": ("lfm2_moe", _SHAPE | _ROUTED | {
        "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1,
        "num_experts_per_tok": 2,
    }),
    "lfm3": ("lfm3", _HEADS | _WINDOW | {
        "num_hidden_layers": 4, "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
    }),
    "kimi_linear": ("kimi_linear", _SHAPE | {
        "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
        "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "linear_head_dim": 16,
        "linear_num_heads": 4, "layer_types": ["linear_attention", "full_attention"],
    }),
    "mamba": ("mamba", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
    "jamba": ("jamba", _SHAPE | {
        "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4, "mamba_d_state": 8,
    }),
    "recurrent_gemma": ("recurrent_gemma", {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "lru_width": 64,
        "attention_window_size": 16,
    }),
}  # fmt: skip
"""Further families: one entry for each family or variant that needs a different way of decoding."""

STATES = (
    "mamba2", "zamba2", "qwen3_next", "bamba", "lfm2", "qwen3_5", "qwen3_5_moe", "olmo_hybrid", "granitemoehybrid",
    "nemotron_h", "falcon_h1", "lfm2_moe", "lfm3",
)  # fmt: skip
"""Families with recurrent or convolutional state that verify trees."""

ALL_FAMILIES: dict[str, Family] = FAMILIES | MORE_FAMILIES
"""All tested families."""


def tiny_model(family: str = "llama", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Return a tiny model of any family of `ALL_FAMILIES`; see `tests.tiny.tiny_model`."""
    return tiny.tiny_model(ALL_FAMILIES[family], seed, **overrides)
