"""Tiny random models and a byte tokenizer, for tests and examples. Independent of drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from antiphon.accel.text.detokenize import byte_alphabet

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "BOS",
    "END_OF_TURN",
    "EOS",
    "FAMILIES",
    "PAD",
    "VOCAB_SIZE",
    "Family",
    "byte_tokenizer",
    "save_model",
    "tiny_model",
]

Family: TypeAlias = tuple[str, dict[str, Any]]
"""A model type of transformers, and the configuration fields that make it tiny."""

_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_HEADS = _SHAPE | {"head_dim": 16}
_GEMMA: dict[str, Any] = _HEADS | {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 12,
    "query_pre_attn_scalar": 16,
}
_ROUTED = {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}

FAMILIES: dict[str, Family] = {
    "llama": ("llama", _SHAPE),
    "qwen3": ("qwen3", _HEADS),
    "mistral": ("mistral", _SHAPE | {"sliding_window": 12}),
    "gemma3": ("gemma3_text", _GEMMA),
    "phi3": ("phi3", _SHAPE),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4}),
    "mixtral": ("mixtral", _SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("qwen3_moe", _HEADS | _ROUTED),
}
"""Dense models and mixtures of experts, full and sliding attention (12 tokens), rotary and learned positions."""

SPECIAL_TOKENS = ("<bos>", "<eos>", "<pad>", "<|im_start|>", "<|im_end|>")
BOS, EOS, PAD, END_OF_TURN = 256, 257, 258, 260
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
"""Vocabulary size of the byte tokenizer and of every tiny model: 256 bytes, then the special tokens."""

CHATML = (
    "{% for message in messages %}{{ bos_token if loop.first }}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_model(family: str | Family = "llama", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Return a random causal model of about 100,000 parameters, in float32 and evaluation mode.

    Its weights have a larger spread (0.08) than those of a newly initialized model, so that the next token depends on
    the text. PyTorch's global random state is not changed.

    Args:
        family: A key of ``FAMILIES``, or another model type of transformers and its configuration.

    Raises:
        ValueError: There is no such family.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if isinstance(family, str) and family not in FAMILIES:
        raise ValueError(
            f"There is no tiny model of the family {family!r}; choose one of {', '.join(FAMILIES)}, or give a model "
            "type of transformers and its configuration."
        )
    name, shape = FAMILIES[family] if isinstance(family, str) else family
    common: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "initializer_range": 0.08,
        "tie_word_embeddings": False,
        "max_position_embeddings": 512,
    }
    config = AutoConfig.for_model(name, **(common | shape | overrides))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed the GPUs as well
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.eval()
    if model.generation_config is not None:
        model.generation_config.eos_token_id = [EOS, END_OF_TURN]
    return model


def byte_tokenizer(*, bos: bool = True, chat: bool = True) -> PreTrainedTokenizerBase:
    """Return a tokenizer whose token ids 0 to 255 are the bytes of UTF-8, followed by the special tokens.

    Args:
        bos: Put ``<bos>`` before every text, as Llama's tokenizer does.
        chat: Give it a ChatML template, which writes ``<bos>`` itself.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special, special=True) for special in SPECIAL_TOKENS])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        clean_up_tokenization_spaces=False,
        chat_template=CHATML if chat else None,
    )


def save_model(model: Any, folder: Path, **options: Any) -> Path:
    """Save a model with the byte tokenizer and return the folder; ``options`` are those of ``save_pretrained``."""
    model.save_pretrained(folder, **options)
    byte_tokenizer().save_pretrained(folder)
    return folder
