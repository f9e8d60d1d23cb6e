"""Fields that the responses of several endpoints share: usage, metrics, citations, passages, logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.pipelines.citations import Citation
from antiphon.pipelines.rendering.segments import displayed_quote, file_name, place_of
from antiphon.pipelines.server.request_queue import Finished, Started
from antiphon.pipelines.tracing import Span
from antiphon.retrieval import Passage
from antiphon.retrieval.source_file import file_change


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
