"""Tokenizers and models that think, for tests: the marks of several families, as text and as tokens."""

from typing import Any

from antiphon.accel import LanguageModel
from tests.accel.scripted_torch_model import scripted_model
from tests.tiny import EOS, byte_tokenizer, tiny_model

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
QUESTION = [{"role": "user", "content": "Why?"}]

TEMPLATES = {
    "decides": TURNS + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
    "opened": TURNS + "<think>\n{# </think> #}",
    "off": TURNS + "{% if thinking %}<think>{% else %}</think>{% endif %}",
    "budget": TURNS + "{% if thinking_budget is defined %}<t:think>budget {{ thinking_budget }}</t:think>{% endif %}",
    "channels": "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "<|start|>assistant{# <|channel|>analysis #}{{ reasoning_effort }}",
    "gemma": TURNS + "{% if use_reasoning is defined and not use_reasoning %}<|channel>thought\n<channel|>{% endif %}",
    "none": TURNS,
}
CHANNEL_MARKS = ["<|channel|>", "<|constrain|>", "<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"]


def thinking_tokenizer(template: str, *, has_mark_tokens: bool = False) -> Any:
    """Return a byte tokenizer with one of the templates, whose marks are single tokens or several bytes."""
    tokenizer: Any = byte_tokenizer()
    tokenizer.chat_template = TEMPLATES[template]
    if has_mark_tokens and template == "channels":
        tokenizer.add_special_tokens({"additional_special_tokens": CHANNEL_MARKS}, replace_extra_special_tokens=False)
    elif has_mark_tokens and template == "gemma":
        marks = {"additional_special_tokens": ["<|channel>", "<channel|>"]}
        tokenizer.add_special_tokens(marks, replace_extra_special_tokens=False)
    elif has_mark_tokens:
        tokenizer.add_tokens(["<think>", "</think>", "<t:think>", "</t:think>"])
    return tokenizer


def writing(tokenizer: Any, text: str, **conversation: Any) -> LanguageModel:
    """Return a model that writes this text, and then its end token, after the question."""
    anything = LanguageModel(tiny_model(vocab_size=len(tokenizer)), tokenizer)
    prompt = anything.tokenize(anything_prompt(**conversation)).count
    script = [*tokenizer.encode(text, add_special_tokens=False), EOS]
    return LanguageModel(scripted_model(script, prompt, len(tokenizer), positions=511), tokenizer)


def anything_prompt(**conversation: Any) -> Any:
    """Return the question as a conversation."""
    from antiphon.accel import Conversation

    return Conversation(QUESTION, **conversation)
