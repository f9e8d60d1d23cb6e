"""The tools: their descriptions, and the classes from which the JSON Schemas of arguments and results are made.

Nothing heavy is imported here, so that the server answers its client while its models are loading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MAX_QUESTION_LENGTH = 4000
"""Maximum number of characters of a question."""

MAX_PASSAGES = 50
"""Maximum number of passages of a search."""

MAX_ID_LENGTH = 200
"""Maximum number of characters of a passage's id and of a collection's name."""

MAX_CONDITIONS = 20
"""Maximum number of names in a filter."""


class StrictModel(BaseModel):
    """A model that accepts no other fields and converts no types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class CollectionArguments(StrictModel):
    """The arguments that all tools have."""

    collection: Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH)] | None = Field(
        None, description="Name of the collection of documents; needed only if there are several."
    )


class SearchArguments(CollectionArguments):
    """The arguments of the tool `search`."""

    query: str = Field(min_length=1, max_length=MAX_QUESTION_LENGTH, description="A question, or words to search for.")
    k: int = Field(5, ge=1, le=MAX_PASSAGES, description="Maximum number of passages.")
    where: Annotated[dict[str, Any], Field(max_length=MAX_CONDITIONS)] | None = Field(
        None,
        description=(
            "Filter of metadata: names with values, or with operators such as $gte and $in; $and, $or and $not join "
            'filters. Example: {"language": "en", "year": {"$gte": 2020}}'
        ),
    )


class AskArguments(CollectionArguments):
    """The arguments of the tool `ask`."""

    question: str = Field(min_length=1, max_length=MAX_QUESTION_LENGTH, description="One complete question.")


class ReadPassageArguments(CollectionArguments):
    """The arguments of the tool `read_passage`."""

    id: str = Field(
        min_length=1, max_length=MAX_ID_LENGTH, description="A passage's id, from the result of another tool."
    )


class PassageFields(StrictModel):
    """The fields of a passage."""

    id: str = Field(description="Id for read_passage.")
    source: str = Field(description="The document.")
    title: str = Field(description="The headings above the passage; may be empty.")
    location: str = Field(description="The place in the document, such as 'page 3'; may be empty.")
    text: str


class FoundPassage(PassageFields):
    """A passage that a search found."""

    score: float | None = Field(description="Similarity of query and passage, from 0 to 1.")


class SearchResult(StrictModel):
    """The result of the tool `search`."""

    collection: str
    passages: list[FoundPassage] = Field(description="The best passages, best first.")


class CitedSpan(StrictModel):
    """A span of an answer that is quoted verbatim from a passage."""

    start: int = Field(description="First character of the span in the answer.")
    end: int = Field(description="End of the span in the answer.")
    text: str = Field(description="The quoted text of the document.")
    passage_id: str = Field(description="Id for read_passage.")
    source: str = Field(description="The document.")
    location: str = Field(description="The place in the document, such as 'p. 3' or a heading; may be empty.")


class NearestText(StrictModel):
    """The sentence of a passage that matches an unanswered question best."""

    text: str
    passage_id: str = Field(description="Id for read_passage.")
    source: str = Field(description="The document.")
    location: str = Field(description="The place in the document; may be empty.")


class AskResult(StrictModel):
    """The result of the tool `ask`."""

    collection: str
    answer: str
    is_refusal: bool = Field(description="Whether the answer says that the documents do not contain it.")
    citations: list[CitedSpan] = Field(description="The verbatim quotes in the answer, in its order.")
    nearest: list[NearestText] = Field(description="For a refusal: the nearest sentences that were found.")
    passage_ids: list[str] = Field(description="Ids of the passages that the answer was made from, best first.")
    produced_by: str = Field(description="What produced the answer, and its cost.")
    is_complete: bool = Field(description="Whether the answer ended before its maximum length.")


class PassageResult(PassageFields):
    """The result of the tool `read_passage`."""

    collection: str
    start: int = Field(description="First character of the passage in its document.")
    end: int = Field(description="End of the passage in its document.")
    also_in: list[str] = Field(description="Further documents with the same passage.")
    document: str = Field(description="URI of the resource with the whole document.")


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool, as clients see it.

    Attributes:
        name: its name.
        title: its name for display.
        description: what it does, for the agent.
        arguments: the class of its arguments.
        result: the class of its result.
    """

    name: str
    title: str
    description: str
    arguments: type[CollectionArguments]
    result: type[StrictModel]


TOOLS = {
    each.name: each
    for each in (
        ToolDefinition(
            "search",
            "Search the documents",
            "Search the documents and return the best passages, with their sources, places and scores.",
            SearchArguments,
            SearchResult,
        ),
        ToolDefinition(
            "ask",
            "Ask the documents",
            "Answer a question from the documents, with citations of the passages that the answer quotes. If the "
            "documents do not contain the answer, is_refusal is true; do not make up an answer then.",
            AskArguments,
            AskResult,
        ),
        ToolDefinition(
            "read_passage",
            "Read a passage",
            "Return the whole text of a passage by its id, with its place in its document.",
            ReadPassageArguments,
            PassageResult,
        ),
    )
}
"""The tools by name."""
