"""Converts request bodies to the arguments of `LanguageModel.stream`: prompt, parameters and passages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from antiphon.accel.constraints.json_schema import JsonSchema
from antiphon.accel.text.messages import Conversation, Message, PromptInput
from antiphon.accel.text.thinking_switch import EFFORT, check_template_variables
from antiphon.accel.text.tool_choice import prepare_tools
from antiphon.pipelines.server.errors import unsupported_parameter
from antiphon.pipelines.server.request_schemas import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    Reference,
    SamplingRequest,
    TextPart,
)
from antiphon.retrieval import Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ASSISTANT = "assistant"


Schema = JsonSchema | dict[str, Any] | None


def chat_prompt(
    request: ChatRequest, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[Conversation, Mapping[str, Any], Schema]:
    """Return the conversation of a chat request, the tools that may be called, and the schema of the answer.

    For each tool, the schema of its arguments is returned by name. If the model must call a tool,
    the conversation already contains the beginning of the answer, which is the beginning of the
    call.

    Raises:
        ApiError: a part of a message is not text, or two fields contradict each other.
        ValueError: the chosen tool does not exist, or the chat template does not support tools.
    """
    messages = [_template_message(message, index) for index, message in enumerate(request.messages)]
    variables = template_options(request)
    schema = request.response_format.required_schema if request.response_format else None
    if request.continue_final_message:
        if messages[-1]["role"] != ASSISTANT:
            message = "The last message is not the assistant's, so it cannot be continued."
            raise unsupported_parameter("continue_final_message", message)
        conversation = Conversation(messages[:-1], (), str(messages[-1]["content"]), template_variables=variables)
        return conversation, {}, schema
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
    choice = request.tool_choice
    chosen_tool = choice if choice is None or isinstance(choice, str) else choice.function.name
    conversation, schemas, answer = prepare_tools(tokenizer, messages, tools, chosen_tool, schema)
    return replace(conversation, template_variables=variables), schemas, answer


def template_options(request: ChatRequest) -> dict[str, Any]:
    """Return the variables of the chat template that a request sets.

    Raises:
        ApiError: a variable would change how the template is applied.
    """
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault(EFFORT, request.reasoning_effort)
    try:
        check_template_variables(variables)
    except ValueError as error:
        raise unsupported_parameter("chat_template_kwargs", str(error)) from error
    return variables


def _template_message(message: ChatMessage, index: int) -> Message:
    """Return a message in the form for chat templates: content as text, arguments of tool calls as objects."""
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": join_text(message.content, f"messages.{index}.content")}
    plain |= message.model_dump(include={"name", "reasoning_content", "tool_call_id"}, exclude_none=True)
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id or "",
                "type": "function",
                "function": {"name": call.function.name, "arguments": _parse_arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    return plain


def _parse_arguments(arguments: str) -> Any:
    """Return the arguments as an object, or unchanged if they are not valid JSON."""
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def join_text(content: str | Sequence[TextPart] | None, param: str) -> str:
    """Return the text of a message's content, its parts joined.

    Args:
        param: the name of the field, for the error message.

    Raises:
        ApiError: a part is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.text is None or part.type not in ("text", "input_text", "output_text", "reasoning_text"):
            message = f"{param} has a part of the type {part.type!r}; this server supports text only."
            raise unsupported_parameter(param, message)
    return "".join(part.text or "" for part in content)


def completion_prompts(request: CompletionRequest, tokenizer: PreTrainedTokenizerBase | None) -> list[PromptInput]:
    """Return the prompts of a completion request.

    Raises:
        ApiError: the prompt is empty, or is given as token ids although only the model's server has
            a tokenizer.
    """
    prompt = request.prompt
    if not prompt:
        raise unsupported_parameter("prompt", "prompt is empty; give a text of at least one character.")
    if isinstance(prompt, str):
        return [prompt]
    if tokenizer is None:
        texts: list[PromptInput] = [each for each in prompt if isinstance(each, str)]
        if len(texts) < len(prompt):
            raise unsupported_parameter(
                "prompt", "The model runs on another server, so prompt must be text, not token ids."
            )
        return texts
    if isinstance(prompt[0], int):
        return [str(tokenizer.decode(prompt))]
    return [each if isinstance(each, str) else str(tokenizer.decode(each)) for each in prompt]


def sampling_parameters(request: SamplingRequest, index: int) -> dict[str, Any]:
    """Return the sampling parameters that the request sets; ``index`` of the choice is added to its seed."""
    top_k = request.top_k
    parameters = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": 0 if top_k == -1 else top_k,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": request.logit_bias,
        "stop": request.stop_strings or None,
        "seed": None if request.seed is None else (request.seed + index) % 2**63,
        "stop_token_ids": request.stop_token_ids or None,
        "min_new_tokens": request.min_tokens or None,
        "ignore_eos": request.ignore_eos or None,
        "drafter": "nothing" if request.plain else None,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def reference_passages(references: Sequence[str | Reference] | None) -> tuple[Passage, ...]:
    """Return the non-empty references of a request as passages, which the answer may cite."""
    given = [each if isinstance(each, Reference) else Reference(text=each) for each in references or ()]
    return tuple(_passage(reference, number) for number, reference in enumerate(given, start=1) if reference.text)


def _passage(reference: Reference, number: int) -> Passage:
    metadata = {name: value for name, value in (("title", reference.title), ("url", reference.url)) if value}
    passage = Passage.at(reference.url or reference.title or f"reference {number}", 0, reference.text, metadata)
    return passage if reference.id is None else replace(passage, id=reference.id)


def predicted_texts(request: SamplingRequest) -> tuple[str, ...]:
    """Return the predicted content of the answer. It is used as references for drafting, which are not cited."""
    if request.prediction is None:
        return ()
    text = join_text(request.prediction.content, "prediction.content")
    return (text,) if text else ()
