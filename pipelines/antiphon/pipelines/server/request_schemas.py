"""Schemas of the request bodies: OpenAI's fields, some of vLLM's, and Antiphon's own. Unknown fields are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from antiphon.pipelines.server.errors import unsupported_parameter

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": (),
    "functions": (),
    "modalities": (["text"],),
    "suffix": ("",),
    "use_beam_search": (False,),
    "web_search_options": (),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "prompt_logprobs": (False,),
    "include_stop_str_in_output": (False,),
    "prompt": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "background": (False,),
    "conversation": (),
    "previous_response_id": (),
}
"""Unsupported fields of OpenAI and vLLM, with the values that are accepted because they have no effect."""

Number = Annotated[float, Field(allow_inf_nan=False)]

TokenId = Annotated[int, Field(ge=0, lt=2**31)]

TokenLimit = Annotated[
    Annotated[int, Field(ge=1)] | None, BeforeValidator(lambda value: None if value == -1 else value)
]
"""A maximum number of tokens; None and -1 mean no limit."""


class Reference(BaseModel):
    """A reference: a text that the answer may repeat, and the fields of its citations."""

    text: str
    id: str | None = None
    title: str | None = None
    url: str | None = None


class TextPart(BaseModel):
    """A part of a message; only text parts are supported."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class CalledFunction(BaseModel):
    """The function of a tool call."""

    name: str
    arguments: str = "{}"


class ToolCall(BaseModel):
    """A tool call of an earlier assistant message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class FunctionTool(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A tool that the model may call."""

    type: Literal["function"] = "function"
    function: FunctionTool


class NamedFunction(BaseModel):
    """The name of a function."""

    name: str


class ToolChoice(BaseModel):
    """The tool that the model must call."""

    type: Literal["function"] = "function"
    function: NamedFunction


class StreamOptions(BaseModel):
    """Additional fields of a stream.

    Attributes:
        include_usage: a last chunk has the token counts and metrics.
        continuous_usage_stats: every chunk has the token counts so far.
        include_segments: every chunk says which text was drafted, and from which passage it was copied.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_segments: bool | None = None


class SchemaFormat(BaseModel):
    """A JSON schema."""

    model_config = ConfigDict(populate_by_name=True)

    name: str = "answer"
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None

    @property
    def required_schema(self) -> dict[str, Any] | None:
        """The JSON schema that the answer must follow; None: any text.

        Raises:
            ApiError: the type is ``json_schema``, and there is no schema.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {"type": "object"}
        if self.json_schema is None or self.json_schema.schema_ is None:
            raise unsupported_parameter("response_format", "response_format has the type json_schema, but no schema.")
        return self.json_schema.schema_


class Prediction(BaseModel):
    """The predicted content of the answer."""

    type: Literal["content"] = "content"
    content: str | list[TextPart]


class TextRequest(BaseModel):
    """Fields of all requests that generate text.

    Antiphon's own fields are ``references`` (texts to draft from and cite), ``collection`` (the collection to answer
    from) and ``where`` (a filter of its passages).
    """

    model_config = ConfigDict(extra="allow")

    model: str
    stream: bool | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Number | None = None
    seed: int | None = None
    user: str | None = None
    references: list[str | Reference] | None = None
    prediction: Prediction | None = None
    collection: str | None = None
    where: dict[str, Any] | None = None


class SamplingRequest(TextRequest):
    """Fields of chat and text completions; Antiphon's own field ``plain`` turns drafts off."""

    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    max_tokens: TokenLimit = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    top_k: int | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[int, Number] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    plain: bool | None = None

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings, without empty strings, which have no effect."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in given if text]

    def check_supported(self) -> None:
        """Refuse fields that this server does not support.

        Raises:
            ApiError: 400, with the name of the field.
        """
        for name, value in (self.model_extra or {}).items():
            if name in UNSUPPORTED and value is not None and value not in UNSUPPORTED[name]:
                raise unsupported_parameter(name, f"{name} is not supported by this server; leave it out.")


class ChatRequest(SamplingRequest):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: TokenLimit = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    max_thinking_tokens: Annotated[int, Field(ge=0)] | None = None


class CompletionRequest(SamplingRequest):
    """The body of /v1/completions."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None


class EmbeddingRequest(BaseModel):
    """The body of /v1/embeddings."""

    model: str | None = None
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    user: str | None = None


class RerankRequest(BaseModel):
    """The body of /v1/rerank."""

    model: str | None = None
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | Reference], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = True
