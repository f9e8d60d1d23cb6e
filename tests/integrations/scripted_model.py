"""A language model that calls tools by fixed rules, because a random model never calls one.

The chat template, tokenization, streaming, stop strings and usage are those of any `LanguageModel`.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from transformers import PreTrainedTokenizerBase

from antiphon.accel import LanguageModel, PrefixCache, Step, Stream
from antiphon.accel.text.messages import PromptInput, ReferenceInput, check_references, encode_prompt
from antiphon.accel.text.parameters import Parameters, Settings
from tests.tiny import byte_tokenizer, tiny_model

HERMES = """\
{{ bos_token }}\
{% if tools %}<|im_start|>system
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools><|im_end|>
{% endif %}\
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}\
{% for call in message.tool_calls or [] %}\
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>\
{% endfor %}<|im_end|>
{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A chat template with tools and tool calls in the format of Hermes, Qwen and SmolLM."""


def tool_tokenizer() -> PreTrainedTokenizerBase:
    """Return the byte tokenizer with the template `HERMES`."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = HERMES
    return tokenizer


class ScriptedModel(LanguageModel):
    """Calls the first offered tool once per user message, with arguments from that message.

    Without tools it answers with ``answer``, or with the text of a tiny random model.

    Attributes:
        asked: prompt and references of every request.
    """

    def __init__(self, answer: str | Callable[[str], str] | None = None) -> None:
        super().__init__(tiny_model(max_position_embeddings=16_384), tool_tokenizer(), name="scripted")
        self.answer = answer
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def stream(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[ReferenceInput] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> Stream:
        tokens = encode_prompt(prompt, self.tokenizer)
        text = str(self.tokenizer.decode(tokens))
        self.asked.append((text, tuple(check_references(references))))
        answer = scripted_answer(text) or (self.answer(text) if callable(self.answer) else self.answer)
        if answer is None:
            return super().stream(prompt, references=references, prefix=prefix, **parameters)
        settings = Settings(**parameters)
        ids = self.tokenizer.encode(answer, add_special_tokens=False)
        ends = [None] * (len(ids) - 1) + ["stop"]
        steps = (Step((token,), 0, 0, 0.0, finish=end) for token, end in zip(ids, ends, strict=True))  # type: ignore[arg-type]
        return Stream(steps, self.tokenizer, prompt_tokens=len(tokens), stop=settings.stop_strings)


def scripted_answer(prompt: str) -> str | None:
    """Return a tool call if the user spoke last and tools are offered, JSON if the user asks for it, or None."""
    before, _, opening = prompt.rpartition("<|im_start|>assistant\n")
    role, _, asked = before.rpartition("<|im_start|>")[2].partition("\n")
    tools = [json.loads(line) for line in before.partition("<tools>")[2].partition("</tools>")[0].split("\n") if line]
    if role != "user":
        return None
    if tools:
        function = tools[0]["function"]
        call = {"name": function["name"], "arguments": arguments(function["parameters"], asked)}
        return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>".removeprefix(opening)
    keys = re.findall(r"'(\w+)'", asked) if "JSON" in asked else []
    return json.dumps(dict.fromkeys(keys, "text")) if keys else None


def arguments(schema: dict[str, Any], asked: str) -> dict[str, Any]:
    """Fill the parameters of a tool with the numbers and quotations of a user message."""
    numbers = [int(number) for number in re.findall(r"\d+", asked)] or [0]
    quoted = re.findall(r"'([^']+)'", asked) or [asked.strip()[:40]]
    return {
        name: numbers[0] if kind.get("type") == "integer" else quoted[0]
        for name, kind in schema.get("properties", {}).items()
    }
