"""Third-party clients against a running server: `python -m tests.pipelines.server.clients http://HOST:PORT MODEL`.

Prints one line for each check. It is a script and not a test, because it needs a server and takes minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
SCHEMA = {"type": "object", "properties": {"colour": {"type": "string", "maxLength": 12}}, "required": ["colour"]}


def check(name: str, action: Callable[[], bool]) -> None:
    """Print whether the action returned True."""
    try:
        print(f"{'ok    ' if action() else 'FAILED'} {name}", flush=True)  # noqa: T201
    except Exception as error:  # noqa: BLE001 - every failure is reported
        print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)  # noqa: T201


def with_openai(url: str, model: str) -> None:
    """Check openai-python: chat, text, responses, streaming, schemas, tools, embeddings, errors."""
    from openai import BadRequestError, NotFoundError, OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    options: Any = {"model": model, "messages": MESSAGES, "max_tokens": 16, "seed": 1}
    whole = client.chat.completions.create(**options).choices[0].message.content

    def streamed() -> bool:
        events = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        return text == whole and events[-1].usage is not None and events[-1].usage.completion_tokens == 16

    def is_refused(error: Any, **change: Any) -> bool:
        try:
            client.chat.completions.create(**(options | change))
        except error:
            return True
        return False

    form: Any = {"type": "json_schema", "json_schema": {"name": "colour", "schema": SCHEMA}}
    tool: Any = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
    check("openai-python: a stream has the same text, and usage", streamed)
    check("openai-python: logprobs", lambda: len(_logprobs(client, options)) == 16)
    check("openai-python: n", lambda: len(client.chat.completions.create(**options, n=2).choices) == 2)
    check(
        "openai-python: a schema",
        lambda: "colour" in str(_content(client, options | {"max_tokens": 40}, response_format=form)),
    )
    check(
        "openai-python: a required tool",
        lambda: (
            client.chat.completions.create(**(options | {"max_tokens": 60}), tools=[tool], tool_choice="required")
            .choices[0]
            .message.tool_calls[0]
            .function.name
            == "paint"
        ),
    )
    check(
        "openai-python: completions", lambda: bool(client.completions.create(model=model, prompt="Red,", max_tokens=4))
    )
    request: Any = {"model": model, "input": "Red?", "max_output_tokens": 16}
    check(
        "openai-python: responses",
        lambda: bool(client.responses.create(**request)),
    )
    check(
        "openai-python: responses, streamed",
        lambda: list(client.responses.create(**request, stream=True))[-1].type == "response.incomplete",
    )
    check(
        "openai-python: embeddings", lambda: len(client.embeddings.create(model="x", input="Red").data[0].embedding) > 8
    )

    check("openai-python: an unknown model", lambda: is_refused(NotFoundError, model="none"))
    check("openai-python: an unsupported field", lambda: is_refused(BadRequestError, extra_body={"suffix": "x"}))


def with_openai_extensions(url: str, model: str) -> None:
    """Check openai-python: seeds, stop strings, vectors, predictions and references."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    options: Any = {"model": model, "messages": MESSAGES, "max_tokens": 16, "seed": 1}
    whole = str(_content(client, options))

    def vector(**form: Any) -> Any:
        return client.embeddings.create(model="x", input="Red", **form).data[0].embedding

    cited = {"references": [{"title": "Answer", "text": whole}]}
    check(
        "openai-python: a seed",
        lambda: _content(client, options | {"temperature": 1}) == _content(client, options | {"temperature": 1}),
    )
    check(
        "openai-python: stop", lambda: _content(client, options, stop=[whole[4:7]]) == whole[: whole.index(whole[4:7])]
    )
    check("openai-python: floats equal base64", lambda: vector(encoding_format="float") == vector())
    check(
        "openai-python: a prediction is counted",
        lambda: (
            client.chat.completions.create(
                **options, prediction={"type": "content", "content": whole}
            ).usage.completion_tokens_details.accepted_prediction_tokens
            > 0
        ),
    )
    check(
        "openai-python: a reference is cited",
        lambda: (
            client.chat.completions.create(**options, extra_body=cited)
            .choices[0]
            .message.annotations[0]
            .url_citation.title
            == "Answer"
        ),
    )


def _content(client: Any, options: Any, **more: Any) -> Any:
    return client.chat.completions.create(**options, **more).choices[0].message.content


def _logprobs(client: Any, options: Any) -> Any:
    return client.chat.completions.create(**options, logprobs=True, top_logprobs=2).choices[0].logprobs.content


def with_langchain(url: str, model: str) -> None:
    """Check LangChain's ChatOpenAI: invoke, stream with usage, structured output, tools."""
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, max_completion_tokens=60, stream_usage=True)  # type: ignore[arg-type]
    check("ChatOpenAI: invoke", lambda: bool(chat.invoke("Red?").content))
    check("ChatOpenAI: stream, with usage", lambda: any(each.usage_metadata for each in chat.stream("Red?")))
    form = {"title": "colour", "description": "A colour.", **SCHEMA}
    structured = chat.with_structured_output(form, method="json_schema")
    check("ChatOpenAI: structured output", lambda: "colour" in dict(structured.invoke("A colour?")))
    calling = chat.bind_tools([form], tool_choice="colour")
    check("ChatOpenAI: a tool", lambda: bool(calling.invoke("A colour?").tool_calls))


def with_llama_index(url: str, model: str) -> None:
    """Check LlamaIndex' OpenAILike: chat and text, with and without streaming."""
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-untyped]

    for is_chat in (True, False):
        llm = OpenAILike(
            api_base=f"{url}/v1", api_key="none", model=model, is_chat_model=is_chat, max_tokens=16, temperature=0
        )
        whole = str(llm.complete("Red,"))
        check(f"OpenAILike, chat={is_chat}: complete", lambda whole=whole: bool(whole))  # type: ignore[misc]
        streamed = list(llm.stream_complete("Red,"))[-1].text
        check(f"OpenAILike, chat={is_chat}: a stream has the same text", lambda a=whole, b=streamed: a == b)  # type: ignore[misc]
        check(f"OpenAILike, chat={is_chat}: chat", lambda llm=llm: bool(llm.chat([ChatMessage(content="Red?")])))  # type: ignore[misc]


def with_curl(url: str, model: str) -> None:
    """Check curl: chat, reranking, and invalid JSON."""

    def posted(path: str, body: str) -> Any:
        command = ("curl", "-s", f"{url}{path}", "-H", "Content-Type: application/json", "--data-binary", "@-")
        return json.loads(subprocess.run(command, input=body, capture_output=True, text=True, check=True).stdout)

    request = json.dumps({"model": model, "messages": MESSAGES, "max_tokens": 8})
    ranked = json.dumps({"query": "red wine", "documents": ["blue sea", "red wine is old"]})
    check("curl: chat", lambda: posted("/v1/chat/completions", request)["usage"]["completion_tokens"] == 8)
    check("curl: rerank", lambda: posted("/v1/rerank", ranked)["results"][0]["index"] == 1)
    check("curl: bad JSON", lambda: posted("/v1/chat/completions", "{")["error"]["type"] == "invalid_request_error")


def with_antiphon(url: str, model: str) -> None:
    """Check our own client: it sends references and receives token ids and steps."""
    from antiphon.accel import RemoteLanguageModel

    remote = RemoteLanguageModel(f"{url}/v1", model)
    text = remote.generate(MESSAGES, max_new_tokens=24).text
    again = remote.generate(MESSAGES, references=[text], max_new_tokens=24)
    check("RemoteLanguageModel: the same text with references", lambda: again.text == text)
    check("RemoteLanguageModel: token ids", lambda: len(again.tokens) == again.usage.completion_tokens)
    check("RemoteLanguageModel: fewer steps than tokens", lambda: 0 < again.steps.steps < len(again.tokens))


def main(url: str, model: str) -> None:
    """Check all clients."""
    for action in (with_openai, with_openai_extensions, with_langchain, with_llama_index, with_curl, with_antiphon):
        action(url, model)


if __name__ == "__main__":
    main(*sys.argv[1:3])
