"""Several requests of a language model that are decoded together, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.accel import LanguageModel
from antiphon.accel.decoding.generation import Generation, decode_together
from antiphon.accel.decoding.request import prepare
from antiphon.accel.decoding.stats import Step


def steps_together(model: LanguageModel, prompts: Sequence[str], **settings: Any) -> list[Iterator[Step]]:
    """Return the steps of each prompt; reading those of one runs forward passes for all."""
    greedy: dict[str, Any] = {"do_sample": False, "eos_token_id": None, **settings}

    def begin() -> list[Generation]:
        ids = [list(model.tokenize(prompt).tokens) for prompt in prompts]
        requests = [prepare(model.model, tokens, **greedy) for tokens in ids]
        return [Generation(request, options=model.options, recycling=False) for request in requests]

    return decode_together(model.engine.lock.run(begin))
