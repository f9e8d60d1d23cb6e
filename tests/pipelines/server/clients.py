"""Other people's clients against a server that runs: `python -m tests.pipelines.server.clients http://HOST:PORT MODEL`.

Each line says what was tried and whether it held. A script and no test: it needs a server and takes minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
SCHEMA = {"type": "object", "properties": {"colour": {"type": "string", "maxLength": 12}}, "required": ["colour"]}


def tried(name: str, act: Callable[[], bool]) -> None:
    """Say whether it held."""
    try:
        print(f"{'holds ' if act() else 'FAILED'} {name}", flush=True)  # noqa: T201
    except Exception as error:  # noqa: BLE001 - it is what is reported
        print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)  # noqa: T201


def with_openai(url: str, model: str) -> None:
    """openai-python: whole and streamed, chat and text, responses, schema, tools, embeddings, errors."""
    from openai import BadRequestError, NotFoundError, OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    how: Any = {"model": model, "messages": MESSAGES, "max_tokens": 16, "seed": 1}
    whole = client.chat.completions.create(**how).choices[0].message.content

    def streamed() -> bool:
        events = list(client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        return text == whole and events[-1].usage is not None and events[-1].usage.completion_tokens == 16

    def refused(kind: Any, **change: Any) -> bool:
        try:
            client.chat.completions.create(**(how | change))
        except kind:
            return True
        return False

    form: Any = {"type": "json_schema", "json_schema": {"name": "colour", "schema": SCHEMA}}
    tool: Any = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
    tried("openai-python: a stream is the whole answer, with usage", streamed)
    tried("openai-python: logprobs", lambda: len(_logprobs(client, how)) == 16)
    tried("openai-python: n", lambda: len(client.chat.completions.create(**how, n=2).choices) == 2)
    tried(
        "openai-python: a schema",
        lambda: "colour" in str(_said(client, how | {"max_tokens": 40}, response_format=form)),
    )
    tried(
        "openai-python: a required tool",
        lambda: (
            client.chat.completions.create(**(how | {"max_tokens": 60}), tools=[tool], tool_choice="required")
            .choices[0]
            .message.tool_calls[0]
            .function.name
            == "paint"
        ),
    )
    tried(
        "openai-python: completions", lambda: bool(client.completions.create(model=model, prompt="Red,", max_tokens=4))
    )
    asked: Any = {"model": model, "input": "Red?", "max_output_tokens": 16}
    tried(
        "openai-python: responses",
        lambda: bool(client.responses.create(**asked)),
    )
    tried(
        "openai-python: responses, streamed",
        lambda: list(client.responses.create(**asked, stream=True))[-1].type == "response.incomplete",
    )
    tried(
        "openai-python: embeddings", lambda: len(client.embeddings.create(model="x", input="Red").data[0].embedding) > 8
    )

    tried("openai-python: an unknown model", lambda: refused(NotFoundError, model="none"))
    tried("openai-python: what is not offered", lambda: refused(BadRequestError, extra_body={"suffix": "x"}))


def with_openai_beyond(url: str, model: str) -> None:
    """openai-python: seeds, stops, vectors, predictions and references."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    how: Any = {"model": model, "messages": MESSAGES, "max_tokens": 16, "seed": 1}
    whole = str(_said(client, how))

    def vector(**form: Any) -> Any:
        return client.embeddings.create(model="x", input="Red", **form).data[0].embedding

    cited = {"references": [{"title": "Answer", "text": whole}]}
    tried(
        "openai-python: a seed",
        lambda: _said(client, how | {"temperature": 1}) == _said(client, how | {"temperature": 1}),
    )
    tried("openai-python: stop", lambda: _said(client, how, stop=[whole[4:7]]) == whole[: whole.index(whole[4:7])])
    tried("openai-python: floats are what base64 holds", lambda: vector(encoding_format="float") == vector())
    tried(
        "openai-python: a prediction is counted",
        lambda: (
            client.chat.completions.create(
                **how, prediction={"type": "content", "content": whole}
            ).usage.completion_tokens_details.accepted_prediction_tokens
            > 0
        ),
    )
    tried(
        "openai-python: a reference is cited",
        lambda: (
            client.chat.completions.create(**how, extra_body=cited).choices[0].message.annotations[0].url_citation.title
            == "Answer"
        ),
    )


def _said(client: Any, how: Any, **more: Any) -> Any:
    return client.chat.completions.create(**how, **more).choices[0].message.content


def _logprobs(client: Any, how: Any) -> Any:
    return client.chat.completions.create(**how, logprobs=True, top_logprobs=2).choices[0].logprobs.content


def with_langchain(url: str, model: str) -> None:
    """LangChain's ChatOpenAI: invoke, stream with usage, structured output, tools."""
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, max_completion_tokens=60, stream_usage=True)  # type: ignore[arg-type]
    tried("ChatOpenAI: invoke", lambda: bool(chat.invoke("Red?").content))
    tried("ChatOpenAI: stream, with usage", lambda: any(each.usage_metadata for each in chat.stream("Red?")))
    form = {"title": "colour", "description": "A colour.", **SCHEMA}
    structured = chat.with_structured_output(form, method="json_schema")
    tried("ChatOpenAI: structured output", lambda: "colour" in dict(structured.invoke("A colour?")))
    calling = chat.bind_tools([form], tool_choice="colour")
    tried("ChatOpenAI: a tool", lambda: bool(calling.invoke("A colour?").tool_calls))


def with_llama_index(url: str, model: str) -> None:
    """LlamaIndex' OpenAILike: chat and text, whole and streamed."""
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-untyped]

    for is_chat in (True, False):
        llm = OpenAILike(
            api_base=f"{url}/v1", api_key="none", model=model, is_chat_model=is_chat, max_tokens=16, temperature=0
        )
        whole = str(llm.complete("Red,"))
        tried(f"OpenAILike, chat={is_chat}: complete", lambda whole=whole: bool(whole))  # type: ignore[misc]
        streamed = list(llm.stream_complete("Red,"))[-1].text
        tried(f"OpenAILike, chat={is_chat}: a stream is the whole", lambda a=whole, b=streamed: a == b)  # type: ignore[misc]
        tried(f"OpenAILike, chat={is_chat}: chat", lambda llm=llm: bool(llm.chat([ChatMessage(content="Red?")])))  # type: ignore[misc]


def with_curl(url: str, model: str) -> None:
    """curl: a chat, reranking, and what is no JSON."""

    def posted(path: str, body: str) -> Any:
        told = ("curl", "-s", f"{url}{path}", "-H", "Content-Type: application/json", "--data-binary", "@-")
        return json.loads(subprocess.run(told, input=body, capture_output=True, text=True, check=True).stdout)

    asked = json.dumps({"model": model, "messages": MESSAGES, "max_tokens": 8})
    ranked = json.dumps({"query": "red wine", "documents": ["blue sea", "red wine is old"]})
    tried("curl: chat", lambda: posted("/v1/chat/completions", asked)["usage"]["completion_tokens"] == 8)
    tried("curl: rerank", lambda: posted("/v1/rerank", ranked)["results"][0]["index"] == 1)
    tried("curl: bad JSON", lambda: posted("/v1/chat/completions", "{")["error"]["type"] == "invalid_request_error")


def with_our_own(url: str, model: str) -> None:
    """Our own client: references go along, token ids and steps come back."""
    from antiphon.accel import RemoteLanguageModel

    remote = RemoteLanguageModel(f"{url}/v1", model)
    text = remote.generate(MESSAGES, max_new_tokens=24).text
    told = remote.generate(MESSAGES, references=[text], max_new_tokens=24)
    tried("RemoteLanguageModel: the same text with references", lambda: told.text == text)
    tried("RemoteLanguageModel: token ids", lambda: len(told.tokens) == told.usage.completion_tokens)
    tried("RemoteLanguageModel: fewer steps than tokens", lambda: 0 < told.steps.steps < len(told.tokens))


def main(url: str, model: str) -> None:
    """Try all of them."""
    for act in (with_openai, with_openai_beyond, with_langchain, with_llama_index, with_curl, with_our_own):
        act(url, model)


if __name__ == "__main__":
    main(*sys.argv[1:3])
