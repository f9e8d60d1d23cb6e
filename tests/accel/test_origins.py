"""Origins of tokens: their characters, their steps, and whether they were drafted."""

from collections.abc import Sequence

from antiphon.accel import Origin, Step
from antiphon.accel.text.completion import Completion, Stream
from tests.tiny import EOS, byte_tokenizer


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


def test_a_character_of_several_tokens_belongs_to_its_last_one() -> None:
    origins = completed([step("aé", 2), step("", 0, ends=True)]).origins
    assert [(origin.start, origin.end) for origin in origins] == [(0, 1), (1, 1), (1, 2), (2, 2)]


def test_tokens_cut_off_by_a_stop_string_have_no_characters() -> None:
    completion = completed([step("ab", 1), step("cdef", 3)], stop=["bcd"])
    assert completion.text == "a"
    assert [(each.start, each.end, each.is_drafted) for each in completion.origins] == [
        (0, 1, True),
        (1, 1, False),
        (1, 1, True),
        (1, 1, True),
    ]


def test_a_stream_closed_early_has_the_origins_of_its_pieces() -> None:
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
