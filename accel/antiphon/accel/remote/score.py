"""Log-probabilities of given continuations by a vLLM server, which returns those of the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.accel.remote.client import Client
from antiphon.accel.remote.request_body import COMPLETION_PATH, conversation_fields
from antiphon.accel.remote.server import ServedModel
from antiphon.accel.text.messages import Conversation, Message

TOKENIZE_PATH = "/../tokenize"


def score_continuations(
    client: Client,
    model: ServedModel,
    prompt: str | Sequence[Message] | Conversation,
    continuations: Sequence[str],
    first: int | None,
) -> list[float]:
    """Return the summed log-probability of each continuation in nats; see `LanguageModel.score`.

    Args:
        client: Client of the server.
        model: The model.
        prompt: A text to continue, or messages to answer.
        continuations: Texts.
        first: Number of first tokens of each continuation that are scored; None: all.

    Raises:
        ValueError: The server is not vLLM, so that it returns no log-probabilities of a prompt.
        RemoteError: A request failed.
    """
    if model.kind != "vllm":
        raise ValueError(
            f"{client.base_url} is no vLLM server, and only vLLM returns the log-probabilities of given tokens; score "
            "with a local LanguageModel."
        )
    if isinstance(prompt, str):
        fields: dict[str, Any] = {"prompt": prompt}
    else:
        conversation = prompt if isinstance(prompt, Conversation) else Conversation(prompt)
        fields = conversation_fields(conversation, conversation.assistant_prefix, model)
    start = _tokenize(client, model, fields)
    texts = [
        _tokenize(client, model, {"prompt": text, "add_special_tokens": False})[:first] if text else []
        for text in continuations
    ]
    scored = [index for index, tokens in enumerate(texts) if tokens]
    body = {
        "model": model.name,
        "prompt": [[*start, *texts[index]] for index in scored],
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": 0,
    }
    choices = client.post(COMPLETION_PATH, body)["choices"] if scored else []
    scores = [0.0] * len(texts)
    for choice in choices:
        index = scored[choice["index"]]
        scores[index] = _sum(choice["prompt_logprobs"][len(start) :], texts[index])
    return scores


def _tokenize(client: Client, model: ServedModel, fields: Mapping[str, Any]) -> list[int]:
    return [int(token) for token in client.post(TOKENIZE_PATH, {"model": model.name, **fields})["tokens"]]


def _sum(logprobs: Sequence[Mapping[str, Mapping[str, Any]]], tokens: Sequence[int]) -> float:
    """Return the sum of the log-probabilities of the given tokens, one at each position."""
    return sum(float(own[str(token)]["logprob"]) for own, token in zip(logprobs, tokens, strict=True))
