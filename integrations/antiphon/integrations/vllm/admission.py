"""References and prediction of a request, as they come in: checked, bounded and tokenized once. Knows no vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.accel.drafting.draft import Tokens

REFERENCES, PREDICTION = "references", "prediction"
"""The keys of a request's ``vllm_xargs`` (``extra_args`` in Python)."""

ADMITTED = "antiphon"
"""Under this key the same go on to the worker, as token ids."""

SEPARATOR = -1
"""Stands between references that are given as token ids, in one flat list: nothing else passes through HTTP."""

MOST_REFERENCES = 256
MOST_TOKENS = 65_536
MOST_CHARACTERS = 8 * MOST_TOKENS
"""Of all references and the prediction of one request: they are indexed while others wait for their next token."""

Tokenize = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Sources:
    """What a request may be drafted from besides its prompt, as token ids."""

    references: tuple[Tokens, ...] = ()
    prediction: Tokens = ()

    def as_argument(self) -> dict[str, Any]:
        """As it goes from one process to another."""
        return {REFERENCES: [list(each) for each in self.references], PREDICTION: list(self.prediction)}


def admitted(given: Mapping[str, Any], tokenize: Tokenize | None) -> Sources | None:
    """What these arguments of a request hold for a drafter; None where they hold nothing.

    ``references`` is a text, a list of texts, or a list of token ids in which -1 stands between two references;
    ``prediction`` a text or a list of token ids. Without ``tokenize``, only ids can be read.

    Raises:
        ValueError: they are of another form, or more than one request may bring.
    """
    if REFERENCES not in given and PREDICTION not in given:
        return None
    references = _references(given.get(REFERENCES, ()))
    prediction = _one(PREDICTION, given.get(PREDICTION, ()))
    texts = [each for each in (*references, prediction) if isinstance(each, str)]
    _bound("texts", "characters", sum(map(len, texts)), MOST_CHARACTERS)
    _bound(REFERENCES, "of them", len(references), MOST_REFERENCES)
    sources = Sources(tuple(_tokens(each, tokenize) for each in references), _tokens(prediction, tokenize))
    count = sum(map(len, sources.references)) + len(sources.prediction)
    _bound("references and prediction", "tokens", count, MOST_TOKENS)
    return sources


def sources_of(extra_args: Mapping[str, Any] | None) -> Sources:
    """What was admitted, where the worker finds it."""
    found = (extra_args or {}).get(ADMITTED) or {}
    return Sources(tuple(map(tuple, found.get(REFERENCES, ()))), tuple(found.get(PREDICTION, ())))


def _references(given: object) -> Sequence[str | Sequence[int]]:
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list | tuple):
        raise ValueError(f"{REFERENCES} is {_shown(given)}; {_WANTED}.")  # noqa: TRY004  # one error for one door
    if all(isinstance(each, str) for each in given):
        return given
    if not _are_ids(given, SEPARATOR):
        raise ValueError(f"{REFERENCES} holds something else than texts, or than token ids; {_WANTED}.")
    ends = [index for index, token in enumerate(given) if token == SEPARATOR]
    starts = [0, *(end + 1 for end in ends)]
    return [given[start:end] for start, end in zip(starts, [*ends, len(given)], strict=True)]


def _one(name: str, given: object) -> str | Sequence[int]:
    if isinstance(given, str) or (isinstance(given, list | tuple) and _are_ids(given, 0)):
        return given
    raise ValueError(f"{name} is {_shown(given)}; give a text, or a flat list of token ids.")


def _are_ids(given: Sequence[object], least: int) -> bool:
    return all(isinstance(each, int) and not isinstance(each, bool) and each >= least for each in given)


def _tokens(given: str | Sequence[int], tokenize: Tokenize | None) -> tuple[int, ...]:
    if not isinstance(given, str):
        return tuple(given)
    if tokenize is None:
        raise ValueError(
            "This server has no tokenizer and reads no texts; give references and prediction as token ids."
        )
    return tuple(tokenize(given))


def _bound(what: str, unit: str, count: int, most: int) -> None:
    if count > most:
        raise ValueError(
            f"{what}: there are {count} {unit}, and one request may bring {most}; send fewer or shorter ones."
        )


def _shown(given: object) -> str:
    return f"of type {type(given).__name__}" if not isinstance(given, int | float) else repr(given)


_WANTED = "give a list of texts, or a flat list of token ids with -1 between two references"
