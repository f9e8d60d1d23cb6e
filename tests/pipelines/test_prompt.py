"""Prompts: their format follows the model, and they contain the question and every passage."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.accel import LanguageModel, RemoteLanguageModel
from antiphon.accel.text.messages import encode_prompt
from antiphon.pipelines import Prompt, Rag, chat_prompt, passage_references, plain_prompt
from antiphon.pipelines.extractive_model import ExtractiveModel
from antiphon.pipelines.prompt import (
    READER_SYSTEM,
    REFUSAL,
    SYSTEM,
    is_refusal,
    prompt_format,
    reader_prompt,
    small_model_prompt,
    template_prompt,
)
from antiphon.pipelines.question import Question
from antiphon.pipelines.request_plan import default_max_new_tokens, plan_request
from antiphon.retrieval import Passage, Retriever
from tests.tiny import byte_tokenizer, tiny_model

RECORDED = Path(__file__).parents[3] / "shared" / "data" / "chat_templates"
QUESTION = "How many queens has a colony?"


def model_that_names(prompt_format: str) -> LanguageModel:
    """Return a random model whose configuration names a prompt format."""
    return LanguageModel(tiny_model(prompt_format=prompt_format), byte_tokenizer(), name="taught")


class LargeModel(LanguageModel):
    """A random model that claims to have four billion parameters, and so is expected to follow instructions."""

    num_parameters = 4_000_000_000


def test_the_prompt_depends_on_template_and_size(tiny: LanguageModel, passages: list[Passage]) -> None:
    assert tiny.num_parameters == sum(each.numel() for each in (*tiny.model.parameters(), *tiny.model.buffers()))
    assert prompt_format(tiny) is small_model_prompt
    assert prompt_format(LargeModel(tiny.model, tiny.tokenizer)) is chat_prompt
    assert prompt_format(RemoteLanguageModel("http://127.0.0.1:1/v1", "unknown")) is chat_prompt
    assert [default_max_new_tokens(each) for each in (tiny, LargeModel(tiny.model, tiny.tokenizer))] == [256, 1024]
    for form in (chat_prompt, small_model_prompt):
        content = form(QUESTION, passages[:2]).content
        assert [message["role"] for message in content if not isinstance(message, str)] == ["system", "user"]


def test_an_answer_of_a_small_model_ends_after_its_first_paragraph(
    tiny: LanguageModel, passages: list[Passage]
) -> None:
    assert plan_request(tiny, Question(QUESTION), passages).stop == ("\n\n",)
    assert plan_request(tiny, Question(QUESTION), passages, stop="###").stop == ("###", "\n\n")
    assert plan_request(LargeModel(tiny.model, tiny.tokenizer), Question(QUESTION), passages).stop == ()


def test_questions_on_the_same_passages_share_everything_before_them(passages: list[Passage]) -> None:
    one, other = (chat_prompt(question, passages).content for question in (QUESTION, "Wo leben Bienen?"))
    assert not isinstance(one[0], str)
    assert one[0] == other[0], "the instructions are constant"
    shown = "\n\n".join(f"[{number}] {passage.text}" for number, passage in enumerate(passages, start=1))
    assert one[1] == {"role": "user", "content": f"Passages:\n\n{shown}\n\nQuestion: {QUESTION}"}
    assert other[1] == {"role": "user", "content": f"Passages:\n\n{shown}\n\nQuestion: Wo leben Bienen?"}
    assert all(part in str(one[0]) for part in ("in its language", "[1] or [2][3]", REFUSAL))


@pytest.mark.parametrize(
    "name", ["Qwen-Qwen3-0.6B", "google-gemma-3-4b-it", "meta-llama-Llama-3.2-3B-Instruct", "openai-gpt-oss-120b"]
)
def test_recorded_templates_render_instructions_passages_and_question_in_this_order(
    name: str, passages: list[Passage]
) -> None:
    if not RECORDED.exists():
        pytest.skip(f"recorded templates are absent: {RECORDED}")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (RECORDED / f"{name}.jinja").read_text("utf-8")
    model, questions = LargeModel(tiny_model(), tokenizer), (QUESTION, "Wo leben Bienen?")
    contents = [prompt_format(model)(question, passages).content for question in questions]
    prompts = [str(tokenizer.decode(encode_prompt(content, tokenizer))) for content in contents]
    [shared] = {prompt.partition(question)[0] for prompt, question in zip(prompts, questions, strict=True)}
    shown = [f"[{number}] {each.text}" for number, each in enumerate(passages, start=1)]
    places = [shared.index(part) for part in (SYSTEM, *shown, "\n\nQuestion: ")]
    assert places == sorted(places)


def test_a_template_of_the_caller_has_places_for_passages_and_question(passages: list[Passage]) -> None:
    model = LargeModel(tiny_model(), byte_tokenizer())
    prompt = template_prompt('{"json"} {question} | {passages}', model)("{passages}?", passages[:1])
    text = f'{{"json"}} {{passages}}? | [1] {passages[0].text}'
    assert prompt == Prompt(({"role": "user", "content": text},), has_markers=True)
    plain = template_prompt("{passages}{question}", LargeModel(tiny_model(), byte_tokenizer(chat=False)))
    assert plain("?", passages[:1]).content == f"[1] {passages[0].text}?"
    with pytest.raises(ValueError, match=r"The prompt has no \{passages\} and no \{question\}; write"):
        template_prompt("Answer!", model)
    for selecting in (model_that_names("reader"), ExtractiveModel()):
        with pytest.raises(ValueError, match=f"{selecting.name}' takes no prompt of yours: lines of the passages"):
            template_prompt("{passages} {question}", selecting)


@pytest.mark.parametrize(
    "text",
    ["", " \n", REFUSAL, f"{REFUSAL} They are about bees.", "The passages do not say [1].", f"“{REFUSAL}”",
     f'[1] "**{REFUSAL}**" [2]', "the passages do not say"],
)  # fmt: skip
def test_refusals_are_recognised_with_what_models_put_around_them(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize("text", ["Bees live in colonies [1].", "The passages do not say how many, but [1].", "No."])
def test_other_answers_are_no_refusals(text: str) -> None:
    assert not is_refusal(text)


def test_models_without_a_template_and_with_a_named_prompt_format_get_their_own_prompt(passages: list[Passage]) -> None:
    assert prompt_format(LanguageModel(tiny_model(), byte_tokenizer(chat=False))) is plain_prompt
    prompt = plain_prompt(QUESTION, passages[:2])
    assert prompt.content == f"docs:\n{passages[0].text}\n{passages[1].text}\nquery: {QUESTION}\nanswer:"
    assert "\nquery:" in prompt.stop  # a base model would continue with another question
    assert prompt_format(model_that_names("reader")) is reader_prompt
    shown = f"bees.txt\n[1] {passages[0].text}\n\nbees.txt\n[2] {passages[1].text}"
    assert reader_prompt(QUESTION, passages[:2]).content == (
        {"role": "system", "content": READER_SYSTEM},
        {"role": "user", "content": f"Passages:\n\n{shown}\n\nQuestion: {QUESTION}"},
    )
    assert reader_prompt(QUESTION, passages).stop == ()  # the model ends the answer itself


def test_the_reader_prompt_has_numbered_sentences_under_their_heading(passages: list[Passage]) -> None:
    text = "Colonies\n\nA colony has one queen.  She lays\nthe eggs. There are:\n\n- workers\n- drones\n\n----"
    prompt = reader_prompt(QUESTION, [replace(passages[0], text=text, metadata={"title": "Bees > Colonies"})])
    lines = ["[1] A colony has one queen.", "[1] She lays the eggs.", "[1] There are:", "[1] workers", "[1] drones"]
    turn = prompt.content[-1]
    assert not isinstance(turn, str)
    assert turn["content"] == "\n".join(
        ["Passages:", "", "Bees > Colonies", *lines, "----", "", f"Question: {QUESTION}"]
    )
    assert prompt.answers == (REFUSAL, "\n".join(lines))  # exactly as an answer would repeat them


def test_an_unknown_prompt_format_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'taught' asks for the prompt format 'oracle'; only 'reader' is known"):
        prompt_format(model_that_names("oracle"))


@pytest.mark.parametrize("named", ["reader", "oracle"])
def test_a_given_prompt_overrides_the_named_format(named: str, retriever: Retriever) -> None:
    rag = Rag(retriever, model_that_names(named), k=1, prompt=plain_prompt)
    answer = rag.ask(QUESTION, max_new_tokens=3)
    content = plain_prompt(QUESTION, answer.passages).content
    assert answer.usage.prompt_tokens == 1 + len(str(content))


def question_of(passages: Sequence[Passage]) -> str:
    """Return the content of the user's message."""
    turn = small_model_prompt(QUESTION, passages).content[-1]
    assert not isinstance(turn, str)
    return str(turn["content"])


def test_passages_are_numbered_by_rank_between_two_copies_of_the_question(passages: list[Passage]) -> None:
    text = question_of(passages)
    places = [text.index(f"[{number}] {passage.text}") for number, passage in enumerate(passages, start=1)]
    assert places == sorted(places)
    assert text.startswith(f"Question: {QUESTION}")
    assert text.endswith(f"Question: {QUESTION}")


def test_a_passage_has_its_heading_and_is_a_reference_once(passages: list[Passage]) -> None:
    inside = replace(passages[0], metadata={"title": "Animals > Bees"})
    assert f"[1] Bees\n{inside.text}" in question_of([inside])
    first = replace(inside, text=f"Bees\n\n{inside.text}")
    assert f"[1] Bees\n\n{inside.text}" in question_of([first])
    again = replace(passages[0], source="copy.txt")
    assert passage_references([passages[1], passages[0], again]) == [passages[1].text, passages[0].text]
