"""What clients ask of /v1/responses, and the same as a conversation. Answers nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from antiphon.pipelines.server.errors import refused_error
from antiphon.pipelines.server.requests import (
    CalledFunction,
    ChatMessage,
    ChatRequest,
    EarlierCall,
    FunctionTool,
    NamedFunction,
    Number,
    OfferedTool,
    PredictedContent,
    ResponseFormat,
    SchemaFormat,
    SourceText,
    TextPart,
    ToolChoice,
)

LOGPROBS = "message.output_text.logprobs"
"""What a request names among ``include`` to be told logprobs."""

STATEFUL = ("previous_response_id", "conversation")


class InputItem(BaseModel):
    """A message, a call, or what a called tool said."""

    model_config = ConfigDict(extra="allow")

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[TextPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[TextPart] | None = None


class ResponseTool(FunctionTool):
    """A function that the model may call, its name beside its type."""

    type: str = "function"


class NamedChoice(BaseModel):
    """The one function that has to be called."""

    type: Literal["function"] = "function"
    name: str


class AllowedTools(BaseModel):
    """Those of the tools that may be called, or have to be."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required", "none"] = "auto"
    tools: Annotated[list[NamedChoice], Field(min_length=1)]


class TextFormat(BaseModel):
    """The form of the answer: any text, or JSON."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(BaseModel):
    """How the answer is written."""

    format: TextFormat | None = None


class ResponseRequest(BaseModel):
    """An input that is to be answered; nothing of it is kept afterwards."""

    model_config = ConfigDict(extra="allow")

    model: str
    input: Annotated[str, Field(min_length=1)] | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Number | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | NamedChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    references: list[str | SourceText] | None = None
    prediction: PredictedContent | None = None
    seed: int | None = None


def as_chat(asked: ResponseRequest) -> ChatRequest:
    """The same request in the words of chat completions.

    Raises:
        ApiError: it asks for something that is kept, or for a tool that is no function.
    """
    for name in STATEFUL:
        if (asked.model_extra or {}).get(name) is not None:
            raise refused_error(name, f"{name} is not offered: this server keeps no conversations; send all of it.")
    items = [InputItem(role="user", content=asked.input)] if isinstance(asked.input, str) else asked.input
    messages = [_message(item, place) for place, item in enumerate(items)]
    if asked.instructions:
        messages.insert(0, ChatMessage(role="system", content=asked.instructions))
    has_logprobs = LOGPROBS in (asked.include or ())
    others = {name: value for name, value in (asked.model_extra or {}).items() if name not in ChatRequest.model_fields}
    return ChatRequest(
        model=asked.model,
        messages=messages,
        max_completion_tokens=asked.max_output_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        logprobs=has_logprobs,
        top_logprobs=asked.top_logprobs if has_logprobs else None,
        tools=_tools(asked) or None,
        tool_choice=_choice_of(asked.tool_choice),
        parallel_tool_calls=asked.parallel_tool_calls,
        response_format=_format(asked),
        user=asked.user,
        references=asked.references,
        prediction=asked.prediction,
        seed=asked.seed,
        **others,
    )


def _message(item: InputItem, place: int) -> ChatMessage:
    if item.type == "message" and item.role is not None:
        return ChatMessage(role=item.role, content=item.content)
    if item.type == "function_call" and item.name is not None:
        called = CalledFunction(name=item.name, arguments=item.arguments or "{}")
        return ChatMessage(role="assistant", tool_calls=[EarlierCall(id=item.call_id, function=called)])
    if item.type == "function_call_output":
        return ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id)
    raise refused_error(
        f"input.{place}", f"input.{place} is of the type {item.type!r}, which this server does not read."
    )


def _tools(asked: ResponseRequest) -> list[OfferedTool]:
    """The tools that the model hears of: those that it may call.

    Raises:
        ApiError: a tool that may be called is none of those that are offered.
    """
    tools, choice = [_tool(tool) for tool in asked.tools or ()], asked.tool_choice
    if not isinstance(choice, AllowedTools):
        return tools
    allowed = {each.name for each in choice.tools}
    if unknown := allowed - {tool.function.name for tool in tools}:
        raise refused_error("tool_choice", f"tool_choice allows {min(unknown)!r}, which is none of the tools.")
    return [tool for tool in tools if tool.function.name in allowed]


def _tool(tool: ResponseTool) -> OfferedTool:
    if tool.type != "function":
        raise refused_error("tools", f"A tool is of the type {tool.type!r}; this server offers functions alone.")
    return OfferedTool(function=FunctionTool(name=tool.name, description=tool.description, parameters=tool.parameters))


def _choice_of(choice: str | NamedChoice | AllowedTools | None) -> str | ToolChoice | None:
    if isinstance(choice, AllowedTools):
        return choice.mode
    return ToolChoice(function=NamedFunction(name=choice.name)) if isinstance(choice, NamedChoice) else choice


def _format(asked: ResponseRequest) -> ResponseFormat | None:
    wanted = asked.text.format if asked.text else None
    if wanted is None:
        return None
    return ResponseFormat(type=wanted.type, json_schema=SchemaFormat(name=wanted.name, schema=wanted.schema_))
