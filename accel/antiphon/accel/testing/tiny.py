"""Tiny random models and a byte tokenizer, for tests and examples: real in all but size. Knows nothing of drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.accel.testing.families import ALL_FAMILIES, FAMILIES

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["ALL_FAMILIES", "BOS", "EOS", "FAMILIES", "PAD", "VOCABULARY", "byte_tokenizer", "tiny_model"]

SPECIALS = ("<bos>", "<eos>", "<pad>", "<|im_start|>", "<|im_end|>")
BOS, EOS, PAD = 256, 257, 258
VOCABULARY = 256 + len(SPECIALS)
"""Token ids of the byte tokenizer, and the rows of every tiny model's embedding: 256 bytes, then the specials."""

CHATML = (
    "{% for message in messages %}{{ bos_token if loop.first }}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_model(family: str = "llama", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random float32 causal model of about 100,000 parameters, in evaluation mode: the same one for the same seed.

    ``overrides`` are fields of the family's configuration. The weights spread wider than in a freshly made model
    (0.08), so that the next token depends on the text. PyTorch's global random state is left as it was.

    Raises:
        ValueError: the family is none of ``ALL_FAMILIES``.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if family not in ALL_FAMILIES:
        raise ValueError(f"There is no tiny model of the family {family!r}; choose one of {', '.join(ALL_FAMILIES)}.")
    name, shape = ALL_FAMILIES[family]
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "initializer_range": 0.08,
        "tie_word_embeddings": False,
        "max_position_embeddings": 512,
    }
    config = AutoConfig.for_model(name, **(common | shape | overrides))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.eval()
    return model


def byte_tokenizer(*, bos: bool = True, chat: bool = True) -> PreTrainedTokenizerBase:
    """A tokenizer whose token ids 0 to 255 are the bytes of UTF-8, followed by the specials.

    ``bos`` puts ``<bos>`` before every text, as Llama's tokenizer does; ``chat`` gives it a ChatML template, which
    writes ``<bos>`` itself.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special, special=True) for special in SPECIALS])
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


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary: itself, or one from 256 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
