"""Several requests of a language model that are decoded together, step by step."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from antiphon.accel import LanguageModel
from antiphon.accel.decoding.engine_request import decode_together
from antiphon.accel.decoding.model_request import ModelRequest, prepare
from antiphon.accel.decoding.stats import Step


def steps_together(model: LanguageModel, prompts: Sequence[str], **settings: Any) -> list[Iterator[Step]]:
    """Return the steps of each prompt; reading those of one runs forward passes for all."""
    greedy: dict[str, Any] = {"do_sample": False, "eos_token_id": None, **settings}

    def start() -> list[ModelRequest]:
        ids = [list(model.tokenize(prompt).tokens) for prompt in prompts]
        make = partial(ModelRequest, options=model.options, recycling=False)
        return [prepare(model.model, tokens, make, **greedy) for tokens in ids]

    return decode_together(model.engine.lock.run(start))
