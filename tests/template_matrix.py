"""The table of chat templates: each conversation through Python, HTTP, LangChain and LlamaIndex, also without drafts.

A model of random weights answers; its first tokens are compared, so prompts, parsing and decoding all have to agree.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi.testclient import TestClient
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock

from antiphon.accel import Conversation, LanguageModel
from antiphon.accel.text.template_check import TemplateCase, check_template
from antiphon.accel.text.template_traits import template_traits
from antiphon.accel.text.thinking_switch import thinking_traits
from antiphon.integrations.langchain import ChatAntiphon
from antiphon.integrations.llama_index import AntiphonLLM
from antiphon.pipelines import Rag
from antiphon.pipelines.server.app import create_app
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.accel.thinking_models import TEMPLATES as THINKING_TEMPLATES
from tests.conftest import TEXTS
from tests.pipelines.server.conftest import tiny_service
from tests.tiny import byte_tokenizer, tiny_model

RECORDED = Path(__file__).parents[2] / "shared" / "data" / "chat_templates"
QUESTION = "How do bees live?"
TOKENS, SCHEMA_TOKENS = 6, 200
OWNER = re.compile(
    r"^(google|meta-llama|mistralai|microsoft|deepseek-ai|openai|Qwen|ibm-granite|moonshotai|HuggingFaceTB|CohereForAI"
    r"|NousResearch|ByteDance|openchat|teknium|zai)-"
)
"""The owner of a model at the beginning of a recorded template's name."""

LOOP = "{%- for m in messages -%}"
OWN_TEMPLATES = {
    **{f"own: thinking {name}": text for name, text in THINKING_TEMPLATES.items()},
    "own: no system role, turns alternate": LOOP
    + "{%- if m.role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}"
    + "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('Alternate') }}{%- endif -%}"
    + "<{{ m.role }}>{{ m.content }}{%- endfor -%}<assistant>",
    "own: tools as tagged JSON": "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    + LOOP
    + "<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n"
    + "</tool_call>{% endfor %}{%- endfor -%}<assistant>",
    "own: tools with ids of nine characters": "{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}{% endif %}"
    + LOOP
    + "{% for call in m.tool_calls or [] %}{% if call.id | length != 9 %}{{ raise_exception('ids have 9') }}{% endif %}"
    + "[TOOL_CALLS] [{{ dict(call.function, id=call.id) | tojson }}]{% else %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    + "{%- endfor -%}<assistant>",
    "own: parts": LOOP + "<{{ m.role }}>{%- for part in m.content -%}{{ part.text }}{%- endfor -%}{%- endfor -%}<me>",
}


@dataclass(frozen=True)
class Outcome:
    """What one way to ask returned: the text of the answer and the length of the prompt, or a refusal."""

    text: str = ""
    prompt_tokens: int = 0
    refusal: str = ""


def templates() -> dict[str, str]:
    """Return all templates by name: our own, and the recorded ones if they are there."""
    recorded = {path.stem: path.read_text("utf-8") for path in sorted(RECORDED.glob("*.jinja"))}
    return OWN_TEMPLATES | recorded


@dataclass(frozen=True)
class Surfaces:
    """One model with its four ways to ask."""

    model: LanguageModel
    client: TestClient
    rag: Rag
    chat: ChatAntiphon
    llm: AntiphonLLM


@lru_cache(maxsize=1)
def _weights() -> Any:
    return tiny_model(max_position_embeddings=16384, vocab_size=300, seed=2)


@contextmanager
def surfaces(template: str) -> Iterator[Surfaces]:
    """Serve a tiny model with this template."""
    tokenizer: Any = byte_tokenizer()
    tokenizer.chat_template = template
    model = LanguageModel(_weights(), tokenizer, name="tiny")
    with TemporaryDirectory() as folder:
        passages = [Passage.at("bees.txt", 100 * number, text) for number, text in enumerate(TEXTS)]
        index = Path(folder) / "index"
        index_passages(passages, index, HashEmbedder())
        with TestClient(create_app(tiny_service(model, index, k=1, max_output_tokens=SCHEMA_TOKENS))) as client:
            rag = Rag(Retriever.open(index), model, k=1)
            chat, llm = ChatAntiphon(language_model=model), AntiphonLLM(language_model=model)
            yield Surfaces(model, client, rag, chat, llm)


def cell(ways: Surfaces, case: TemplateCase) -> dict[str, Outcome]:
    """Return the outcome of each way to ask for one conversation."""
    return {name: _outcome(ask, ways, case) for name, ask in WAYS.items()}


def documents_cell(ways: Surfaces) -> dict[str, Outcome]:
    """Return the answers to a question about documents; tests/integrations compares the other ways to ask it."""
    ways_to_decode: dict[str, dict[str, Any]] = {"plain": {"drafter": "nothing"}, "python": {}}
    answers = {name: ways.rag.ask(QUESTION, max_new_tokens=TOKENS, **each) for name, each in ways_to_decode.items()}
    return {name: Outcome(each.text, each.usage.prompt_tokens) for name, each in answers.items()}


def _outcome(ask: Callable[[Surfaces, Any], Outcome], ways: Surfaces, case: TemplateCase) -> Outcome:
    try:
        return ask(ways, case)
    except ValueError as error:
        return Outcome(refusal=str(error))


def _limit(case: TemplateCase) -> int:
    return TOKENS if case.schema is None else SCHEMA_TOKENS


def _python(ways: Surfaces, case: TemplateCase, **options: Any) -> Outcome:
    prompt = Conversation(case.messages, case.tools)
    found = ways.model.generate(
        prompt, max_new_tokens=_limit(case), json_schema=case.schema, thinking=case.thinking, **options
    )
    return Outcome(found.text, found.usage.prompt_tokens)


def _plain(ways: Surfaces, case: TemplateCase) -> Outcome:
    return _python(ways, case, drafter="nothing")


def _drafted(ways: Surfaces, case: TemplateCase) -> Outcome:
    return _python(ways, case, references=[*TEXTS, _plain(ways, case).text], num_draft_tokens=4)


def _http(ways: Surfaces, case: TemplateCase) -> Outcome:
    body: dict[str, Any] = {"model": "tiny", "messages": list(case.messages), "max_tokens": _limit(case)}
    if case.tools:
        body["tools"] = list(case.tools)
        calls = [dict(message) for message in case.messages]
        for message in calls:
            if "tool_calls" in message:
                message["tool_calls"] = [_with_json_arguments(call) for call in message["tool_calls"]]
        body["messages"] = calls
    if case.schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": case.schema}}
    if case.thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": case.thinking}
    return _posted(ways, body)


def _with_json_arguments(call: Any) -> dict[str, Any]:
    function = {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}
    return {**call, "function": function}


def _posted(ways: Surfaces, body: dict[str, Any]) -> Outcome:
    response = ways.client.post("/v1/chat/completions", json=body)
    found = response.json()
    if response.status_code != 200:
        return Outcome(refusal=str(found["error"]["message"]))
    return Outcome(found["choices"][0]["message"]["content"] or "", found["usage"]["prompt_tokens"])


def _langchain(ways: Surfaces, case: TemplateCase) -> Outcome:
    options = {"json_schema": case.schema, "thinking": case.thinking, "max_tokens": _limit(case)}
    given = {name: value for name, value in options.items() if value is not None}
    chat: Any = ways.chat.bind_tools([dict(tool) for tool in case.tools]) if case.tools else ways.chat
    answer = chat.invoke([_langchain_message(message) for message in case.messages], **given)
    return Outcome(str(answer.content), answer.usage_metadata["input_tokens"])


def _langchain_message(message: Any) -> BaseMessage:
    content = message["content"]
    if message["role"] == "tool":
        return ToolMessage(content, tool_call_id=message["tool_call_id"])
    if message["role"] == "assistant":
        calls = [
            {"name": call["function"]["name"], "args": call["function"]["arguments"], "id": call["id"]}
            for call in message.get("tool_calls", ())
        ]
        return AIMessage(content, tool_calls=calls)
    return SystemMessage(content) if message["role"] == "system" else HumanMessage(content)


def _llama_index(ways: Surfaces, case: TemplateCase) -> Outcome:
    options = {"json_schema": case.schema, "thinking": case.thinking, "tools": list(case.tools) or None}
    given = {name: value for name, value in options.items() if value is not None}
    messages = [_llama_index_message(message) for message in case.messages]
    answer: Any = ways.llm.chat(messages, max_tokens=_limit(case), **given)
    return Outcome(answer.message.content or "", answer.raw["usage"]["prompt_tokens"])


def _llama_index_message(message: Any) -> ChatMessage:
    calls = [
        ToolCallBlock(
            tool_call_id=call["id"], tool_name=call["function"]["name"], tool_kwargs=call["function"]["arguments"]
        )
        for call in message.get("tool_calls", ())
    ]
    more = {"tool_call_id": message["tool_call_id"]} if message["role"] == "tool" else {}
    blocks: list[Any] = [TextBlock(text=message["content"]), *calls]
    return ChatMessage(role=MessageRole(message["role"]), blocks=blocks, additional_kwargs=more)


WAYS: dict[str, Callable[[Surfaces, Any], Outcome]] = {
    "plain": _plain,
    "python": _drafted,
    "http": _http,
    "langchain": _langchain,
    "llama-index": _llama_index,
}


def refusals(template: str) -> dict[str, str]:
    """Return the conversations that a template rules out, with its message."""
    tokenizer: Any = byte_tokenizer()
    tokenizer.chat_template = template
    return refusals_of(tokenizer)


def refusals_of(tokenizer: Any) -> dict[str, str]:
    """Return the conversations that a tokenizer's template rules out, with its message."""
    return {name: message for name, message in check_template(tokenizer).items() if message}


def docs_table() -> str:
    """Return the table of the recorded templates for the documentation."""
    lines = ["| model | instructions | turns | thinking | tools |", "|---|---|---|---|---|"]
    for name in sorted(templates().keys() - OWN_TEMPLATES.keys(), key=_model_name):
        tokenizer: Any = byte_tokenizer()
        tokenizer.chat_template = templates()[name]
        traits, thinking = template_traits(tokenizer), thinking_traits(tokenizer)
        switch = thinking.switch or ("reasoning_effort" if thinking.has_effort else "")
        thinks = "no" if thinking.format is None else f"`{switch}`" if switch else "always"
        system = "system message" if traits.has_system_role else "first question"
        turns = "merged to alternate" if traits.alternates else "any order"
        tools = "no" if "tools" in refusals_of(tokenizer) else "yes"
        lines.append(f"| {_model_name(name)} | {system} | {turns} | {thinks} | {tools} |")
    return "\n".join(lines) + "\n"


def _model_name(template: str) -> str:
    return OWNER.sub("", template)


def failure(outcomes: dict[str, Outcome]) -> str:
    """Return how the ways to ask differ; empty if they agree and none was refused."""
    refused = {name: each.refusal for name, each in outcomes.items() if each.refusal}
    if refused:
        return str(refused)
    return "" if len(set(outcomes.values())) == 1 else str(outcomes)
