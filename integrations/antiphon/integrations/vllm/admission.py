"""Validation and tokenization of a request's references and prediction. vLLM is not imported."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.accel.drafting.draft import Tokens

REFERENCES, PREDICTION = "references", "prediction"
"""Keys that a client sets in a request's ``vllm_xargs`` (``extra_args`` in Python)."""

ADMITTED = "antiphon"
"""Reserved key of ``extra_args``, under which the validated token ids are sent to the worker."""

SEPARATOR = -1
"""Separates references that are given as ids in one flat list: vLLM's HTTP API accepts no nested lists."""

MAX_REFERENCES = 256
MAX_TOKENS = 65_536
"""Maximum number of tokens in all references and the prediction: while they are indexed, other requests wait."""

MAX_CHARACTERS = 8 * MAX_TOKENS

SLICE_CHARACTERS = 8_192
"""Maximum number of characters that one call of `Admission.advance` tokenizes: about 5 ms on one core."""

Tokenize = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Sources:
    """The token ids, besides the prompt, from which a request's drafts may be copied.

    Attributes:
        references: Texts that the answer may quote.
        prediction: A text that the answer probably repeats from its beginning.
    """

    references: tuple[Tokens, ...] = ()
    prediction: Tokens = ()

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all references and the prediction."""
        return sum(map(len, self.references)) + len(self.prediction)


class AdmittedSources(dict[str, Any]):
    """`Sources` as a dictionary of lists, which vLLM can serialize to send it to the worker.

    A client can send any value under the key `ADMITTED`, but not an object of this class. So every
    object of this class comes from admission.
    """

    def __init__(self, sources: Sources, given: Mapping[str, Any]) -> None:
        super().__init__(
            {REFERENCES: [list(each) for each in sources.references], PREDICTION: list(sources.prediction)}
        )
        self._given = _snapshot(given)

    def is_made_from(self, given: Mapping[str, Any]) -> bool:
        """Return whether these sources were made from the references and the prediction in ``given``."""
        return self._given == _snapshot(given)


class Admission:
    """Validation and tokenization of one request, in steps of bounded time.

    The constructor validates everything but the number of tokens. Call `advance` until it returns False, then read
    `sources`. Long texts are tokenized in slices of at most `SLICE_CHARACTERS` that end before a
    space if possible. At the ends of a slice the tokens may differ from the tokens of the whole
    text. A draft that is copied from there may then be rejected.

    Args:
        given: A request's arguments. ``references`` is a text, a list of texts, or a flat list of token ids with -1
            between two references; ``prediction`` is a text or a list of token ids.
        tokenize: Converts a text to token ids without special tokens; None if the server has no tokenizer.
        vocab_size: Vocabulary size of the model; every token id must be smaller.

    Raises:
        ValueError: The arguments have a wrong type, exceed a limit, or contain a token id outside the vocabulary.
    """

    def __init__(self, given: Mapping[str, Any], tokenize: Tokenize | None, vocab_size: int) -> None:
        self._tokenize, self._vocab_size = tokenize, vocab_size
        references = _parse_references(given.get(REFERENCES, ()))
        prediction = _parse_prediction(given.get(PREDICTION, ()))
        _check_texts([each for each in (*references, prediction) if isinstance(each, str)], tokenize)
        _check_limit(REFERENCES, "of them", len(references), MAX_REFERENCES)
        self._tokens: list[list[int]] = []  # of each reference, then of the prediction
        self._slices: deque[tuple[int, str]] = deque()  # texts to tokenize, each with its index in _tokens
        for name, text in (*((REFERENCES, each) for each in references), (PREDICTION, prediction)):
            self._tokens.append([])
            if isinstance(text, str):
                _check_unicode(name, text)
                self._slices += ((len(self._tokens) - 1, part) for part in slice_text(text))
            else:
                self._append(len(self._tokens) - 1, text, name)
        self._check_number_of_tokens()

    def advance(self) -> bool:
        """Tokenize up to `SLICE_CHARACTERS` further characters; return whether anything is left to tokenize.

        Raises:
            ValueError: The request has more than `MAX_TOKENS` tokens, or an id is outside the
                vocabulary.
        """
        characters_left = SLICE_CHARACTERS
        while self._tokenize and self._slices and len(self._slices[0][1]) <= characters_left:
            place, text = self._slices.popleft()
            characters_left -= len(text)
            self._append(place, self._tokenize(text), PREDICTION if place == len(self._tokens) - 1 else REFERENCES)
        self._check_number_of_tokens()
        return bool(self._slices)

    def sources(self) -> Sources:
        """Return the token ids of everything that was tokenized."""
        *references, prediction = map(tuple, self._tokens)
        return Sources(tuple(references), prediction)

    def _append(self, place: int, tokens: Sequence[int], name: str) -> None:
        """Append token ids to a text's ids; raise an error if one of them is not in the vocabulary."""
        if tokens and max(tokens) >= self._vocab_size:
            raise ValueError(
                f"{name} holds a token id outside the vocabulary: {_shown(max(tokens))}; the model's "
                f"vocabulary size is {self._vocab_size}, so give ids from 0 to {self._vocab_size - 1}."
            )
        self._tokens[place] += tokens

    def _check_number_of_tokens(self) -> None:
        _check_limit("references and prediction", "tokens", sum(map(len, self._tokens)), MAX_TOKENS)


def begin_admission(given: Mapping[str, Any], tokenize: Tokenize | None, vocab_size: int) -> Admission | None:
    """Return the `Admission` of a request, or None if it has neither references nor a prediction.

    Raises:
        ValueError: The arguments are invalid (see `Admission`), or contain the reserved key
            `ADMITTED`.
    """
    is_forged = ADMITTED in given and not isinstance(given[ADMITTED], AdmittedSources)
    if is_forged:
        raise ValueError(f"{ADMITTED!r} is a reserved key; give {REFERENCES!r} and {PREDICTION!r} instead.")
    if REFERENCES not in given and PREDICTION not in given:
        return None
    return Admission(given, tokenize, vocab_size)


def admit(given: Mapping[str, Any], tokenize: Tokenize | None, vocab_size: int) -> Sources | None:
    """Validate and tokenize a request's arguments at once; return None if they have no references and no prediction.

    Raises:
        ValueError: See `begin_admission`.
    """
    admission = begin_admission(given, tokenize, vocab_size)
    if admission is None:
        return None
    while admission.advance():
        pass
    return admission.sources()


def read_sources(extra_args: Mapping[str, Any] | None) -> Sources:
    """Return the sources that admission has added to a request's arguments. The worker calls this function."""
    found = (extra_args or {}).get(ADMITTED) or {}
    return Sources(tuple(map(tuple, found.get(REFERENCES, ()))), tuple(found.get(PREDICTION, ())))


def slice_text(text: str) -> Iterable[str]:
    """Split a text into slices of at most `SLICE_CHARACTERS`, each ending before a space if possible."""
    start = 0
    while len(text) - start > SLICE_CHARACTERS:
        end = text.rfind(" ", start + SLICE_CHARACTERS // 2, start + SLICE_CHARACTERS)
        end = end if end > 0 else start + SLICE_CHARACTERS
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _parse_references(given: object) -> Sequence[str | Sequence[int]]:
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list | tuple):
        raise ValueError(f"{REFERENCES} is {_shown(given)}; {_WANTED}.")  # noqa: TRY004  # vLLM answers ValueErrors
    if all(isinstance(each, str) for each in given):
        return given
    _check_limit(REFERENCES, "token ids", len(given), MAX_TOKENS + MAX_REFERENCES)
    if not _are_ids(given, SEPARATOR):
        raise ValueError(f"{REFERENCES} holds something else than texts, or than token ids; {_WANTED}.")
    ends = [index for index, token in enumerate(given) if token == SEPARATOR]
    starts = [0, *(end + 1 for end in ends)]
    return [given[start:end] for start, end in zip(starts, [*ends, len(given)], strict=True)]


def _parse_prediction(given: object) -> str | Sequence[int]:
    if isinstance(given, str) or (isinstance(given, list | tuple) and _are_ids(given, 0)):
        return given
    is_list = isinstance(given, list | tuple)
    found = "holds something else than token ids" if is_list else f"is {_shown(given)}"
    raise ValueError(f"{PREDICTION} {found}; give a text, or a flat list of token ids.")


def _are_ids(given: Sequence[Any], least: int) -> bool:
    # Checking the set of types is fast; a Python loop over 65,536 ids would block the event loop for milliseconds.
    kinds = set(map(type, given))
    return all(issubclass(kind, int) and kind is not bool for kind in kinds) and min(given, default=least) >= least


def _check_texts(texts: Sequence[str], tokenize: Tokenize | None) -> None:
    _check_limit("texts", "characters", sum(map(len, texts)), MAX_CHARACTERS)
    if tokenize is None and any(texts):
        raise ValueError(
            "This server has no tokenizer and reads no texts; give references and prediction as token ids."
        )


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} holds a lone surrogate, {text[error.start]!a} at character {error.start} of a text; "
            "give texts that can be encoded in UTF-8."
        ) from None


def _check_limit(what: str, unit: str, count: int, most: int) -> None:
    if count > most:
        raise ValueError(
            f"{what}: there are {count} {unit}, and one request may bring {most}; send fewer or shorter ones."
        )


def _snapshot(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return references and prediction with copied lists, so that a later change of a list is noticed."""
    found = {key: given[key] for key in (REFERENCES, PREDICTION) if key in given}
    return {key: list(value) if isinstance(value, list) else value for key, value in found.items()}


def _shown(given: object) -> str:
    if isinstance(given, int) and given.bit_length() > 64:
        return f"an integer of {given.bit_length()} bits"
    return repr(given) if isinstance(given, int | float) else f"of type {type(given).__name__}"


_WANTED = "give a list of texts, or a flat list of token ids with -1 between two references"
