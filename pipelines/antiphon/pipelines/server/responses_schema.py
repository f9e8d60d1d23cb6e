"""Schema of the body of /v1/responses, and its conversion to a chat request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from antiphon.pipelines.server.errors import unsupported_parameter
from antiphon.pipelines.server.request_conversion import join_text
from antiphon.pipelines.server.request_schemas import (
    CalledFunction,
    ChatMessage,
    ChatRequest,
    FunctionTool,
    NamedFunction,
    ResponseFormat,
    SchemaFormat,
    TextPart,
    TextRequest,
    TokenLimit,
    Tool,
    ToolCall,
    ToolChoice,
)

LOGPROBS = "message.output_text.logprobs"
"""The value of ``include`` that requests logprobs."""

STATEFUL = ("previous_response_id", "conversation")


class InputItem(BaseModel):
    """A message, a function call, or the output of a function."""

    model_config = ConfigDict(extra="allow")

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[TextPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[TextPart] | None = None


class ResponseTool(FunctionTool):
    """A function that the model may call; unlike in a chat request, its fields are not nested under ``function``."""

    type: str = "function"


class NamedChoice(BaseModel):
    """The function that the model must call."""

    type: Literal["function"] = "function"
    name: str


class AllowedTools(BaseModel):
    """The subset of the tools that the model may or must call."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required", "none"] = "auto"
    tools: Annotated[list[NamedChoice], Field(min_length=1)]


class TextFormat(SchemaFormat):
    """The format of the answer: any text, or JSON."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    description: str | None = None


class TextOptions(BaseModel):
    """Options of the answer's text."""

    format: TextFormat | None = None


class ReasoningOptions(BaseModel):
    """How much the model thinks."""

    effort: str | None = None


class ResponseRequest(TextRequest):
    """The body of /v1/responses. The server stores neither requests nor responses."""

    input: Annotated[str, Field(min_length=1)] | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: TokenLimit = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | NamedChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_thinking_tokens: Annotated[int, Field(ge=0)] | None = None


def to_chat_request(body: ResponseRequest) -> ChatRequest:
    """Convert the body to the body of an equivalent chat request.

    Raises:
        ApiError: the body refers to stored responses, or has an unsupported item or tool.
    """
    for name in STATEFUL:
        if (body.model_extra or {}).get(name) is not None:
            raise unsupported_parameter(
                name, f"{name} is not supported: this server stores no responses; send the whole conversation."
            )
    items = [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    messages = _with_reasoning(items)
    if body.instructions:
        messages.insert(0, ChatMessage(role="system", content=body.instructions))
    has_logprobs = LOGPROBS in (body.include or ())
    extra = {name: value for name, value in (body.model_extra or {}).items() if name not in ChatRequest.model_fields}
    form = body.text.format if body.text else None
    fields: dict[str, Any] = {
        "messages": messages,
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": has_logprobs,
        "top_logprobs": body.top_logprobs if has_logprobs else None,
        "tools": _tools(body) or None,
        "tool_choice": _tool_choice(body.tool_choice),
        "response_format": ResponseFormat(type=form.type, json_schema=form) if form else None,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
    }
    shared = ResponseRequest.model_fields.keys() & ChatRequest.model_fields.keys() - fields.keys()
    return ChatRequest(**extra, **fields, **{name: getattr(body, name) for name in shared})


def _with_reasoning(items: list[InputItem]) -> list[ChatMessage]:
    """Return the items as messages; a reasoning item is merged into the assistant's message after it."""
    messages: list[ChatMessage] = []
    thought = ""
    for index, item in enumerate(items):
        if item.type == "reasoning":
            thought = join_text(item.content, f"input.{index}.content")
            continue
        message = _message(item, index)
        is_thought = thought and message.role == "assistant"
        messages.append(message.model_copy(update={"reasoning_content": thought}) if is_thought else message)
        thought = ""
    return messages


def _message(item: InputItem, index: int) -> ChatMessage:
    if item.type == "message" and item.role is not None:
        return ChatMessage(role=item.role, content=item.content)
    if item.type == "function_call" and item.name is not None:
        called = CalledFunction(name=item.name, arguments=item.arguments or "{}")
        return ChatMessage(role="assistant", tool_calls=[ToolCall(id=item.call_id, function=called)])
    if item.type == "function_call_output":
        return ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id)
    raise unsupported_parameter(
        f"input.{index}", f"input.{index} has the type {item.type!r}, which this server does not support."
    )


def _tools(body: ResponseRequest) -> list[Tool]:
    """Return the tools that the model may call.

    Raises:
        ApiError: ``tool_choice`` allows a tool that is not in ``tools``.
    """
    tools, choice = [_tool(tool) for tool in body.tools or ()], body.tool_choice
    if not isinstance(choice, AllowedTools):
        return tools
    allowed = {each.name for each in choice.tools}
    if unknown := allowed - {tool.function.name for tool in tools}:
        raise unsupported_parameter("tool_choice", f"tool_choice allows {min(unknown)!r}, which is not in tools.")
    return [tool for tool in tools if tool.function.name in allowed]


def _tool(tool: ResponseTool) -> Tool:
    if tool.type != "function":
        raise unsupported_parameter("tools", f"A tool has the type {tool.type!r}; this server supports functions only.")
    return Tool(function=FunctionTool(name=tool.name, description=tool.description, parameters=tool.parameters))


def _tool_choice(choice: str | NamedChoice | AllowedTools | None) -> str | ToolChoice | None:
    if isinstance(choice, AllowedTools):
        return choice.mode
    return ToolChoice(function=NamedFunction(name=choice.name)) if isinstance(choice, NamedChoice) else choice
