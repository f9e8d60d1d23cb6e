"""How likely a model finds what was said, whoever said it. Knows nothing of decoding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel


@torch.no_grad()
def log_probability(model: PreTrainedModel, output: Sequence[int], prompt_length: int) -> float:
    """The log-probability, in nats, of the tokens of ``output`` after its first ``prompt_length``: their sum.

    One full forward; temperature and penalties do not count.

    Raises:
        ValueError: there is no prompt, or nothing after it.
    """
    if not 0 < prompt_length < len(output):
        raise ValueError(
            f"The output has {len(output)} tokens and the prompt {prompt_length}; a prompt of at least 1 token and at "
            "least 1 token after it are needed."
        )
    ids = torch.tensor([list(output)], device=model.device)
    said = ids[0, prompt_length:]
    logits = model(
        input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=len(said) + 1
    ).logits[0, -len(said) - 1 : -1]
    found = torch.log_softmax(logits.float(), dim=-1).gather(1, said[:, None])
    return float(found.sum())
