"""Result types of the tools; their JSON Schemas are sent to clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field


class Result(BaseModel, extra="forbid"):
    """The result of a tool, or a part of a result."""


Outdated = Annotated[
    Literal["", "changed", "deleted"], Field(description="What happened to the file since it was indexed.")
]


class PassageFields(Result):
    """A passage."""

    id: str = Field(description="Id for read_passage.")
    source: str = Field(description="The document.")
    title: str = Field(description="The headings above the passage; may be empty.")
    location: str = Field(description="The place in the document, such as 'page 3'; may be empty.")
    text: str
    outdated: Outdated


class FoundPassage(PassageFields):
    """A passage that a search found."""

    score: float | None = Field(description="Similarity of query and passage, from 0 to 1.")


class SearchResult(Result):
    """The result of the tool `search`."""

    collection: str
    passages: list[FoundPassage] = Field(description="The best passages, best first.")


class Quote(Result):
    """A text of a passage, with its place."""

    text: str
    passage_id: str = Field(description="Id for read_passage.")
    source: str = Field(description="The document.")
    location: str = Field(description="'p. 3', a heading or another place; may be empty.")
    outdated: Outdated


class CitedSpan(Quote):
    """A span of an answer that is quoted verbatim from a passage, or a number in brackets that names a passage."""

    start: int = Field(description="First character of the span in the answer.")
    end: int = Field(description="End of the span in the answer.")
    kind: Literal["verbatim", "marker"] = Field(
        description="'marker': the text is what the passage says nearest to it."
    )
    unsupported: bool = Field(description="Whether a marker's passage shares no word with its sentence.")


class AskResult(Result):
    """The result of the tool `ask`."""

    collection: str
    answer: str
    is_refusal: bool = Field(description="Whether the documents do not contain the answer.")
    citations: list[CitedSpan] = Field(description="The quotes and markers in the answer, in its order.")
    nearest: list[Quote] = Field(description="For a refusal: the nearest sentences.")
    outdated: str = Field(description="A line about these documents if their files have changed; may be empty.")
    passage_ids: list[str] = Field(description="Ids of the passages of the answer, best first.")
    produced_by: str = Field(description="What produced the answer, and its cost.")
    is_complete: bool = Field(description="Whether the answer ended before its maximum length.")


class PassageResult(PassageFields):
    """The result of the tool `read_passage`."""

    collection: str
    start: int = Field(description="First character of the passage in its document.")
    end: int = Field(description="End of the passage in its document.")
    also_in: list[str] = Field(description="Further documents with the same passage.")
    document: str = Field(description="URI of the resource with the whole document.")
