"""The bytes of single tokens, joined, are the bytes of the text, in byte-level and SentencePiece vocabularies."""

import pytest
from tokenizers import decoders
from transformers import PreTrainedTokenizerBase

from antiphon.accel.text.detokenize import TokenBytes
from tests.accel.test_detokenize import sentencepiece
from tests.tiny import byte_tokenizer

LLAMA = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
TOKENIZERS = {"bytes": byte_tokenizer(bos=False), "SentencePiece": sentencepiece(LLAMA)}


@pytest.mark.parametrize("text", ["the cat sat.", "café\nthe 🐈 é", " the", "日本"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_joined_bytes_are_those_of_the_text(name: str, text: str) -> None:
    tokenizer: PreTrainedTokenizerBase = TOKENIZERS[name]
    bytes_of = TokenBytes(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(map(bytes_of, ids)).decode()
    assert joined.removeprefix(" ") == text.removeprefix(" ")
    assert bytes_of(tokenizer.eos_token_id) == str(tokenizer.eos_token).encode()
