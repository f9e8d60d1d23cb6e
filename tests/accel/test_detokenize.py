"""Detokenization: joined pieces equal the decoded text, stop strings cut it exactly, and each token has its origin."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from antiphon.accel import Origin, Step
from antiphon.accel.text.completion import Completion, Stream
from antiphon.accel.text.detokenize import Detokenizer, TokenBytes
from antiphon.accel.text.stop_strings import StopStrings
from tests.tiny import EOS, byte_tokenizer

BYTES = byte_tokenizer()
LLAMA = Path(__file__).parents[2] / ".." / "shared" / "data" / "llama_tokenizer"


def sentencepiece(decoder: Any) -> PreTrainedTokenizerBase:
    """Return a tokenizer like SentencePiece's, whose tokens are words with a leading space, and single bytes."""
    words = ["▁", "▁the", "▁cat", "s", "at", ".", "▁▁", "é", "\n"]
    names = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


LLAMA_2 = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
TOKENIZERS = {
    "bytes": BYTES,
    "llama-2": sentencepiece(LLAMA_2),
    "metaspace": sentencepiece(decoders.Metaspace()),
    "word pieces": sentencepiece(decoders.WordPiece(prefix="s", cleanup=True)),
}


def pieces(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [detokenizer.push(token) for token in tokens] + [detokenizer.pending]


def whole(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_joined_pieces_equal_the_decoding_of_any_token_ids(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=30))
    assert "".join(pieces(tokenizer, tokens)) == whole(tokenizer, tokens)


@settings(max_examples=100, deadline=None)
@given(text=st.text())
def test_any_text_is_returned_in_complete_characters(text: str) -> None:
    returned = pieces(BYTES, list(text.encode()))
    assert "".join(returned) == text
    assert all(piece in text for piece in returned)
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert returned[-1] == ""
        assert sum(map(bool, returned)) == len(text)


def test_a_partial_character_is_held_back() -> None:
    tokens = list("a🎉b".encode())
    assert pieces(BYTES, tokens) == ["a", "", "", "", "🎉", "b", ""]


def test_detokenization_takes_linear_time() -> None:
    decoded = 0

    class Counting:
        def decode(self, tokens: list[int], **options: Any) -> str:
            nonlocal decoded
            decoded += len(tokens)
            return str(BYTES.decode(tokens, **options))

        def convert_ids_to_tokens(self, token: int) -> Any:
            return BYTES.convert_ids_to_tokens(token)

    tokens = list(("wörds " * 200).encode())
    pieces(Counting(), tokens)  # type: ignore[arg-type]
    assert decoded < 8 * len(tokens)


def streamed(strings: list[str], parts: list[str]) -> tuple[list[str], bool]:
    stops = StopStrings(strings)
    returned = []
    for part in parts:
        returned.append(stops.push(part))
        if stops.is_found:
            return returned, True
    return [*returned, stops.finish("")], stops.is_found


@settings(max_examples=500, deadline=None)
@given(
    strings=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    parts=st.lists(st.text("abc", max_size=3), max_size=12),
)
def test_a_text_is_cut_before_the_first_complete_stop_string(strings: list[str], parts: list[str]) -> None:
    text, is_found = "", False
    for part in parts:
        text += part
        starts = [text.index(string) for string in strings if string in text]
        if starts:
            text, is_found = text[: min(starts)], True
            break
    returned, found = streamed(strings, parts)
    assert ("".join(returned), found) == (text, is_found)


def test_only_the_possible_beginning_of_a_stop_string_is_held_back() -> None:
    returned, found = streamed(["\nUser:"], ["Hi\n", "Us", "e it.\n", "\nUser", ": no"])
    assert returned == ["Hi", "", "\nUse it.", "\n", ""]
    assert found


def test_marks_of_tool_calls_are_kept_although_they_are_special_tokens() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["[TOOL_CALLS]", "[ARGS]", "[INST]"], special_tokens=True)
    ids = tokenizer.encode('<bos>[INST]ä[TOOL_CALLS]count[ARGS]{"n": 3}<|im_end|>', add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.push(token) for token in ids) == 'ä[TOOL_CALLS]count[ARGS]{"n": 3}'


def step(text: str, accepted: int, *, ends: bool = False) -> Step:
    tokens = (*text.encode(), *([EOS] if ends else []))
    return Step(tokens, drafted=9, accepted=accepted, seconds=0.0, finish="stop" if ends else None)


def completed(steps: Sequence[Step], *, stop: Sequence[str] = (), read: int | None = None) -> Completion:
    stream = Stream(iter(steps), byte_tokenizer(), prompt_tokens=1, stop=stop)
    for _, _ in zip(range(100 if read is None else read), stream, strict=False):
        pass
    if read is not None:
        stream.close()
    return stream.completion


def test_every_token_has_its_characters_its_step_and_whether_it_was_drafted() -> None:
    assert completed([step("a", 0), step("bc", 1), step("", 0, ends=True)]).origins == (
        Origin(0, 1, 0, False),
        Origin(1, 2, 1, True),
        Origin(2, 3, 1, False),
        Origin(3, 3, 2, False),
    )
    origins = completed([step("aé", 2), step("", 0, ends=True)]).origins
    assert [(origin.start, origin.end) for origin in origins] == [(0, 1), (1, 1), (1, 2), (2, 2)]
    completion = completed([step("ab", 1), step("cdef", 3)], stop=["bcd"])
    assert completion.text == "a"
    assert [(each.start, each.end, each.is_drafted) for each in completion.origins] == [
        (0, 1, True),
        (1, 1, False),
        (1, 1, True),
        (1, 1, True),
    ]
    assert completed([step("ab", 1), step("cd", 1)], read=1).origins == (Origin(0, 1, 0, True), Origin(1, 2, 0, False))
    assert completed([step("ab", 1)], read=0).origins == ()


def test_the_tokens_of_a_step_after_a_stop_string_are_dropped() -> None:
    tokenizer = byte_tokenizer()
    tokens = tuple(tokenizer.encode("a queen lays", add_special_tokens=False))
    only = Step(tokens, drafted=11, accepted=11, seconds=0.0)
    completion = Stream(iter([only]), tokenizer, prompt_tokens=1, stop=["en"]).to_end().completion
    assert completion.text == "a que"
    assert completion.tokens == tokens[:7]
    assert (completion.usage.completion_tokens, completion.steps.accepted) == (7, 7)
    assert completion.finish_reason == "stop"
    assert len(completion.origins) == 7


@pytest.mark.parametrize("text", ["the cat sat.", "café\nthe 🐈 é", " the", "日本"])
@pytest.mark.parametrize("name", ["bytes", "llama-2"])
def test_joined_bytes_are_those_of_the_text(name: str, text: str) -> None:
    tokenizer: PreTrainedTokenizerBase = TOKENIZERS[name]
    bytes_of = TokenBytes(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(map(bytes_of, ids)).decode()
    assert joined.removeprefix(" ") == text.removeprefix(" ")
    assert bytes_of(tokenizer.eos_token_id) == str(tokenizer.eos_token).encode()
