"""What a text cost and what it cites, as OpenAI's and vLLM's words have it. Decodes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antiphon.accel.decoding.logprobs import TokenLogprob
from antiphon.pipelines.citations import Citation, cite
from antiphon.pipelines.server.jobs import Finished
from antiphon.retrieval import Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def usage_of(prompt: int, written: int) -> dict[str, Any]:
    """Tokens read and written."""
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def whole_usage(ended: Sequence[Finished], *, is_predicted: bool) -> dict[str, Any]:
    """Tokens read, once, and written by all; of what was predicted those that were said, and those that were not.

    Unlike OpenAI's, ``completion_tokens`` count no rejected ones: they are not paid for here.
    """
    texts = [each.completion for each in ended]
    prompt = texts[0].usage.prompt_tokens
    usage = usage_of(prompt, sum(each.usage.completion_tokens for each in texts))
    usage["prompt_tokens_details"] = {"cached_tokens": max(prompt - texts[0].steps.prefill_tokens, 0)}
    if is_predicted:
        accepted = sum(each.steps.accepted for each in texts)
        drafted = sum(each.steps.drafted for each in texts)
        usage["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
            "reasoning_tokens": 0,
            "audio_tokens": 0,
        }
    return usage


def metrics_of(ended: Sequence[Finished]) -> dict[str, Any]:
    """The figures of one request: of speculative decoding as vLLM tells them, and seconds."""
    steps = [each.completion.steps for each in ended]
    forwards, tokens = sum(each.steps for each in steps), sum(each.tokens for each in steps)
    drafted, accepted = sum(each.drafted for each in steps), sum(each.accepted for each in steps)
    return {
        "time_to_first_token_seconds": round(ended[0].first_seconds, 4),
        "queue_seconds": round(ended[0].waited, 4),
        "seconds": round(max(each.seconds for each in ended), 4),
        "steps": forwards,
        "tokens_per_step": round(tokens / forwards, 3) if forwards else 0.0,
        "speculative_decoding": {
            "num_drafts": forwards,
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
            "acceptance_rate": round(accepted / drafted, 4) if drafted else 0.0,
        },
    }


def annotations_of(text: str, passages: Sequence[Passage]) -> list[dict[str, Any]]:
    """Where the text repeats a passage verbatim, as OpenAI's ``url_citation`` with the passage's own span beside."""
    return [_annotation(citation, passages[citation.passage - 1]) for citation in cite(text, passages)]


def _annotation(citation: Citation, passage: Passage) -> dict[str, Any]:
    return {
        "type": "url_citation",
        "url_citation": {
            "start_index": citation.start,
            "end_index": citation.end,
            "title": passage.metadata.get("title") or source_name(passage.source),
            "url": passage.metadata.get("url") or f"/passages/{passage.id}",
            "cited_text": citation.text,
            "passage": citation.passage,
            "passage_id": passage.id,
            "passage_start": citation.source_start - passage.start,
            "passage_end": citation.source_end - passage.start,
        },
    }


def passage_object(passage: Passage) -> dict[str, Any]:
    """A passage as JSON: its text, and where it stands."""
    return {
        "id": passage.id,
        "source": source_name(passage.source),
        "title": passage.metadata.get("title", ""),
        "text": passage.text,
        "start": passage.start,
        "end": passage.end,
    }


def source_name(source: str) -> str:
    """What people call a document: the last part of its path."""
    return source.replace("\\", "/").rpartition("/")[2] or source


def chat_logprobs(found: Sequence[TokenLogprob], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Logprobs as chat completions have them."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = str(tokenizer.decode([token]))
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return {
        "content": [
            {**entry(each.token, each.logprob), "top_logprobs": [entry(*other) for other in each.top]} for each in found
        ],
        "refusal": None,
    }


def text_logprobs(found: Sequence[TokenLogprob], tokenizer: PreTrainedTokenizerBase, offset: int) -> dict[str, Any]:
    """Logprobs as completions have them; ``offset`` is where the first token's text begins."""
    tokens = [str(tokenizer.decode([each.token])) for each in found]
    offsets = [offset + sum(map(len, tokens[:place])) for place in range(len(tokens))]
    tops = [{str(tokenizer.decode([token])): value for token, value in each.top} for each in found]
    return {
        "tokens": tokens,
        "token_logprobs": [each.logprob for each in found],
        "top_logprobs": tops,
        "text_offset": offsets,
    }
