"""What clients may ask, in OpenAI's words and those of vLLM; what is unknown is ignored. Answers nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from antiphon.pipelines.server.errors import refused_error

NOT_OFFERED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": (),
    "functions": (),
    "modalities": (["text"],),
    "suffix": ("",),
    "use_beam_search": (False,),
    "web_search_options": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "background": (False,),
    "conversation": (),
    "previous_response_id": (),
}
"""What clients ask elsewhere and nobody answers here, and the values that ask for nothing."""

Number = Annotated[float, Field(allow_inf_nan=False)]


class SourceText(BaseModel):
    """A text that the answer may repeat, and what a citation of it says."""

    text: str
    id: str | None = None
    title: str | None = None
    url: str | None = None


class TextPart(BaseModel):
    """A part of a message; only texts are read."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class CalledFunction(BaseModel):
    """The function that an earlier answer called."""

    name: str
    arguments: str = "{}"


class EarlierCall(BaseModel):
    """A call of an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[EarlierCall] | None = None
    tool_call_id: str | None = None


class FunctionTool(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OfferedTool(BaseModel):
    """A tool that the model may call."""

    type: Literal["function"] = "function"
    function: FunctionTool


class NamedFunction(BaseModel):
    """A function by its name."""

    name: str


class ToolChoice(BaseModel):
    """The one tool that has to be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


class StreamOptions(BaseModel):
    """What a stream tells beside its text; ``include_runs`` is how it was drafted, for pages that show it."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_runs: bool | None = None


class SchemaFormat(BaseModel):
    """A JSON schema."""

    model_config = ConfigDict(populate_by_name=True)

    name: str = "answer"
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None

    @property
    def wanted(self) -> dict[str, Any] | None:
        """The schema that the answer has to follow; None for any text.

        Raises:
            ApiError: a schema is announced and not given.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {"type": "object"}
        if self.json_schema is None or self.json_schema.schema_ is None:
            raise refused_error("response_format", "response_format announces a JSON schema and gives none.")
        return self.json_schema.schema_


class PredictedContent(BaseModel):
    """What the answer is likely to say."""

    type: Literal["content"] = "content"
    content: str | list[TextPart]


class SamplingRequest(BaseModel):
    """What all requests for a text have in common; one that is ``plain`` is decoded without drafts, to compare."""

    model_config = ConfigDict(extra="allow")

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Number | None = None
    top_k: int | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[int, Number] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    references: list[str | SourceText] | None = None
    prediction: PredictedContent | None = None
    return_token_ids: bool | None = None
    plain: bool | None = None

    @property
    def stops(self) -> list[str]:
        """The stop strings; those that are empty ask for nothing."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in given if text]

    def check_offered(self) -> None:
        """Refuse what is not offered, by its name.

        Raises:
            ApiError: something is.
        """
        for name, value in (self.model_extra or {}).items():
            if name in NOT_OFFERED and value is not None and value not in NOT_OFFERED[name]:
                raise refused_error(name, f"{name} is not offered by this server; leave it out.")


class ChatRequest(SamplingRequest):
    """A conversation whose next turn is asked for."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionRequest(SamplingRequest):
    """A text, or several, to be continued."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None


class EmbeddingRequest(BaseModel):
    """Texts whose vectors are asked for."""

    model: str | None = None
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


class RerankRequest(BaseModel):
    """Texts to be put into the order in which they answer a question."""

    model: str | None = None
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | SourceText], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = True
