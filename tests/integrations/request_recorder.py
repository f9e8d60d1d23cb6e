"""Records the prompt and references of every request, and every forward pass of a model."""

import asyncio
import weakref
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from antiphon.accel import LanguageModel, TextModel
from antiphon.accel.drafting.draft import Draft, Tokens
from antiphon.accel.drafting.drafters import Blend
from tests.tiny import byte_tokenizer, tiny_model


@dataclass
class RequestRecorder:
    """The prompt and references of every request that reached the drafter."""

    tokenizer: PreTrainedTokenizerBase
    requests: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def drafter(self) -> Blend:
        """Return the default drafter, which records its requests here."""
        recorder = self

        class RecordedDrafter(Blend):
            def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft:
                if prompt:  # the drafter's constructor begins with an empty prompt
                    read = recorder.tokenizer.decode
                    texts = tuple(str(read(list(reference))) for reference in references)
                    recorder.requests.append((str(read(list(prompt))), texts))
                return super().begin(prompt, references)

        return RecordedDrafter()


def recorded_model() -> tuple[LanguageModel, RequestRecorder]:
    """Return a tiny model and the recorder of its requests."""
    recorder = RequestRecorder(byte_tokenizer())
    return LanguageModel(
        tiny_model(max_position_embeddings=4096), recorder.tokenizer, name="tiny", drafter=recorder.drafter
    ), recorder


@dataclass(frozen=True)
class ForwardPass:
    """The token ids of a forward pass, and a weak reference to its KV cache."""

    ids: list[int]
    cache: weakref.ReferenceType[Any]


@contextmanager
def recorded_forward_passes(language_model: TextModel) -> Iterator[list[ForwardPass]]:
    """Yield a list to which every forward pass in the ``with`` block is appended."""
    assert isinstance(language_model, LanguageModel)
    seen: list[ForwardPass] = []

    def note(module: object, positional: object, arguments: dict[str, Any]) -> None:
        seen.append(ForwardPass(arguments["input_ids"].flatten().tolist(), weakref.ref(arguments["past_key_values"])))

    hook = language_model.model.register_forward_pre_hook(note, with_kwargs=True)
    yield seen
    hook.remove()


async def cancel_midway(call: Coroutine[Any, Any, Any], seen: list[ForwardPass]) -> asyncio.CancelledError:
    """Cancel a call after three forward passes, and check that no forward pass follows."""
    task = asyncio.create_task(call)
    while len(seen) < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    spent = len(seen)
    await asyncio.sleep(0.1)
    assert len(seen) == spent
    return caught.value
