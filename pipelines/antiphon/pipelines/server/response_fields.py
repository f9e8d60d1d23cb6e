"""Fields that the responses of several endpoints share: usage, metrics, citations, passages, logprobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from antiphon.accel import Completion, Origin
from antiphon.accel.decoding.stats import TokenLogprob
from antiphon.accel.text.detokenize import TokenBytes
from antiphon.pipelines.citations import Citation
from antiphon.pipelines.rendering.segments import displayed_quote, file_name, place_of
from antiphon.pipelines.server.request_queue import Delta, Finished, Started
from antiphon.pipelines.tracing import Span
from antiphon.retrieval import Passage
from antiphon.retrieval.source_file import file_change

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def usage_counts(prompt: int, completion: int, reasoning: int = 0) -> dict[str, Any]:
    """Return the token counts of a ``usage`` object.

    Args:
        completion: completion tokens, including thinking tokens.
    """
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {}
    return {**counts, "total_tokens": prompt + completion, **details}


def reasoning_field(text: str) -> dict[str, Any]:
    """Return the field of a message or delta that holds the model's thinking; none if there is no thinking."""
    return {"reasoning_content": text} if text else {}


def usage_object(finished: Sequence[Finished], *, is_predicted: bool) -> dict[str, Any]:
    """Return the ``usage`` object of a request.

    Prompt tokens count once for all choices. Unlike OpenAI's, ``completion_tokens`` excludes rejected draft tokens.
    The tokens of a response prefix count as prompt tokens (``response_prefix_tokens``).

    Args:
        is_predicted: whether the request had a ``prediction``; if so, accepted and rejected draft tokens are counted.
    """
    completions = [each.completion for each in finished]
    prompt = completions[0].usage.prompt_tokens
    reasoning = sum(each.usage.reasoning_tokens for each in completions)
    usage = usage_counts(prompt, sum(each.usage.completion_tokens for each in completions), reasoning)
    usage["prompt_tokens_details"] = {
        "cached_tokens": finished[0].cached_tokens,
        "response_prefix_tokens": completions[0].usage.response_prefix_tokens,
    }
    if is_predicted:
        accepted = sum(each.steps.accepted for each in completions)
        drafted = sum(each.steps.drafted for each in completions)
        usage["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
            "reasoning_tokens": reasoning,
            "audio_tokens": 0,
        }
    return usage


def metrics_object(finished: Sequence[Finished]) -> dict[str, Any]:
    """Return the ``metrics`` object of a request: seconds, and speculative decoding counts in vLLM's format."""
    steps = [each.completion.steps for each in finished]
    num_steps, tokens = sum(each.steps for each in steps), sum(each.tokens for each in steps)
    drafted, accepted = sum(each.drafted for each in steps), sum(each.accepted for each in steps)
    return {
        "time_to_first_token_seconds": round(finished[0].first_token_seconds, 4),
        "queue_seconds": round(finished[0].queue_seconds, 4),
        "seconds": round(max(each.seconds for each in finished), 4),
        "steps": num_steps,
        "tokens_per_step": round(tokens / num_steps, 3) if num_steps else 0.0,
        "speculative_decoding": {
            "num_drafts": num_steps,
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
            "acceptance_rate": round(accepted / drafted, 4) if drafted else 0.0,
        },
    }


def annotation_objects(text: str, started: Started) -> list[dict[str, Any]]:
    """Return the citations of a text as OpenAI's ``url_citation`` annotations; see `annotation_object`."""
    if not started.passages:
        return []
    with Span("cite") as span:
        citations = started.plan.cite(text)
        span.set({"antiphon.citations": len(citations)})
    return [annotation_object(citation, started.passages) for citation in citations]


def annotation_object(citation: Citation, passages: Sequence[Passage]) -> dict[str, Any]:
    """Return a citation as OpenAI's ``url_citation`` annotation, with the cited span of the passage.

    ``display_text`` is the cited text without markup; ``location`` is the text's page, section or
    line in the document.
    """
    passage = passages[citation.passage - 1]
    return {
        "type": "url_citation",
        "url_citation": {
            "start_index": citation.start,
            "end_index": citation.end,
            "title": passage.metadata.get("title") or file_name(passage.source),
            "url": passage.metadata.get("url") or f"/passages/{passage.id}",
            "cited_text": citation.text,
            "display_text": displayed_quote(citation.text),
            "location": place_of(citation.location, citation.section),
            "passage": citation.passage,
            "passage_id": passage.id,
            "passage_start": citation.source_start - passage.start,
            "passage_end": citation.source_end - passage.start,
            "also_in": [file_name(source) for source in citation.also_in],
            "kind": citation.kind,
            "unsupported": citation.unsupported,
            "outdated": citation.outdated,
        },
    }


def passage_object(passage: Passage) -> dict[str, Any]:
    """Return a passage as JSON: its text, its place in its document, and other documents that have the same text.

    ``outdated`` is "changed" or "deleted" if the passage's file was changed or deleted after it was
    indexed.
    """
    return {
        "id": passage.id,
        "source": file_name(passage.source),
        "title": passage.metadata.get("title", ""),
        "text": passage.text,
        "start": passage.start,
        "end": passage.end,
        "location": passage.location,
        "also_in": [file_name(source) for source in passage.also_in],
        "outdated": file_change(passage.metadata),
    }


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of the visible text.

    Attributes:
        raw: its bytes.
        start: its first character in the text.
        logprob: its log-probability, and the most likely alternatives.
    """

    raw: bytes
    start: int
    logprob: TokenLogprob


class LogprobReader:
    """Returns the tokens whose text has been sent, except end tokens and tokens of a stop string.

    Args:
        tokenizer: the model's tokenizer; None: the text has no tokens.

    Attributes:
        bytes_of: returns the bytes of a token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.bytes_of: Callable[[int], bytes] = (lambda token: b"") if tokenizer is None else TokenBytes(tokenizer)
        self._special = frozenset(() if tokenizer is None else tokenizer.all_special_ids)
        self._held: list[tuple[TokenLogprob, Origin]] = []
        self._text = ""

    def push(self, delta: Delta) -> list[TextToken]:
        """Add a delta; return the tokens whose text has now been sent."""
        first = len(delta.origins) - len(delta.logprobs)
        self._held += zip(delta.logprobs, delta.origins[first:], strict=True)
        self._text += delta.text
        end = len(self._text)
        sent = takewhile(lambda held: held[1].start < end and held[1].end <= end, self._held)
        return self._take(len([*sent]))

    def finish(self, completion: Completion) -> list[TextToken]:
        """Return the remaining tokens. If a stop string cut the text within a token, that token is cut, too."""
        self._text = completion.text
        ready = sum(origin.start < len(self._text) for _, origin in self._held)
        return self._take(ready)

    def read(self, completion: Completion) -> list[TextToken]:
        """Return all tokens of a completion."""
        first = completion.usage.reasoning_tokens
        self._held = list(zip(completion.logprobs[first:], completion.origins[first:], strict=False))
        return self.finish(completion)

    def _take(self, count: int) -> list[TextToken]:
        taken, self._held = self._held[:count], self._held[count:]
        return [self._text_token(*each) for each in taken]

    def _text_token(self, logprob: TokenLogprob, origin: Origin) -> TextToken:
        raw = self._visible(logprob, origin)
        held = origin.end - origin.start - len(raw.decode(errors="replace"))  # characters that begin in earlier tokens
        return TextToken(raw, origin.start + max(held, 0), logprob)

    def _visible(self, logprob: TokenLogprob, origin: Origin) -> bytes:
        """Return the visible bytes of a token: none for an end token, a part for a token that a stop string cuts."""
        raw = self.bytes_of(logprob.token)
        piece = self._text[origin.start : origin.end]
        try:
            whole = raw.decode()
        except UnicodeDecodeError:
            return raw
        if not piece:
            return b"" if logprob.token in self._special else raw
        if whole in piece:
            return raw
        if whole.startswith(" ") and whole[1:] in piece:
            return raw[1:]
        kept = next((size for size in range(len(whole), 0, -1) if piece.endswith(whole[:size])), 0)
        return whole[:kept].encode()


def chat_logprobs(tokens: Iterable[TextToken], bytes_of: Callable[[int], bytes]) -> dict[str, Any]:
    """Return the ``logprobs`` object of a chat completion.

    Args:
        bytes_of: returns the bytes of a token, for the alternatives.
    """

    def entry(raw: bytes, logprob: float) -> dict[str, Any]:
        return {"token": _spelling(raw), "logprob": logprob, "bytes": list(raw)}

    return {
        "content": [
            {
                **entry(each.raw, each.logprob.logprob),
                "top_logprobs": [entry(bytes_of(token), value) for token, value in each.logprob.top],
            }
            for each in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: Sequence[TextToken], bytes_of: Callable[[int], bytes]) -> dict[str, Any]:
    """Return the ``logprobs`` object of a text completion."""
    return {
        "tokens": [_spelling(each.raw) for each in tokens],
        "token_logprobs": [each.logprob.logprob for each in tokens],
        "top_logprobs": [{_spelling(bytes_of(one)): value for one, value in each.logprob.top} for each in tokens],
        "text_offset": [each.start for each in tokens],
    }


def _spelling(raw: bytes) -> str:
    """Return the text of a token, or its bytes in OpenAI's notation if the token is only a part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
