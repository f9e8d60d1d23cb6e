"""What reaches the engine: the prompt and the references of every text, and every forward of a model."""

from __future__ import annotations

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
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model


@dataclass
class Watch:
    """The texts that a drafter was begun with: each prompt, and the references that reached it."""

    tokenizer: PreTrainedTokenizerBase
    texts: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def drafter(self) -> Blend:
        """The default drafter, watched."""
        watch = self

        class Watched(Blend):
            def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft:
                if prompt:  # an empty one is the drafter's own beginning
                    read = watch.tokenizer.decode
                    texts = tuple(str(read(list(reference))) for reference in references)
                    watch.texts.append((str(read(list(prompt))), texts))
                return super().begin(prompt, references)

        return Watched()


def watched() -> tuple[LanguageModel, Watch]:
    """A tiny model with a watch on its drafter."""
    watch = Watch(byte_tokenizer())
    return LanguageModel(
        tiny_model(max_position_embeddings=4096), watch.tokenizer, name="tiny", drafter=watch.drafter
    ), watch


@dataclass(frozen=True)
class Forward:
    """The token ids of a forward, and its cache as long as anybody holds it."""

    ids: list[int]
    cache: weakref.ReferenceType[Any]


@contextmanager
def forwards(language_model: TextModel) -> Iterator[list[Forward]]:
    """Every forward that the model runs meanwhile."""
    assert isinstance(language_model, LanguageModel)
    seen: list[Forward] = []

    def note(module: object, positional: object, arguments: dict[str, Any]) -> None:
        seen.append(Forward(arguments["input_ids"].flatten().tolist(), weakref.ref(arguments["past_key_values"])))

    hook = language_model.model.register_forward_pre_hook(note, with_kwargs=True)
    yield seen
    hook.remove()


async def cancelled(call: Coroutine[Any, Any, Any], seen: list[Forward]) -> asyncio.CancelledError:
    """Cancel a call in its midst, and see that no forward comes after it."""
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
