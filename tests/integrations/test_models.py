"""Language models of both frameworks: one test for each known bug of the frameworks' local models."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.base.llms.types import ChatMessage, ThinkingBlock
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.query_engine import RetrieverQueryEngine

from antiphon.accel import LanguageModel
from antiphon.accel.text.parameters import ContextLengthError
from antiphon.integrations.langchain import AntiphonLLM as TextLLM
from antiphon.integrations.langchain import ChatAntiphon
from antiphon.integrations.langchain.chat_messages import chat_messages as langchain_turns
from antiphon.integrations.llama_index import AntiphonLLM
from antiphon.integrations.llama_index.chat_messages import chat_messages as llama_index_turns
from tests.accel.thinking_models import thinking_tokenizer, writing
from tests.integrations.frameworks import CHATS, MODELS, LangChainText, Model
from tests.integrations.request_recorder import cancel_midway, recorded_forward_passes
from tests.integrations.scripted_model import ScriptedModel
from tests.integrations.tenant_contracts import ContractNodes, Contracts, question, quoting_answer, tenant_document
from tests.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow

QUESTION = "What do the passages say of bees?"


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tiny: LanguageModel) -> Model:
    """Each model class of both frameworks."""
    return MODELS[request.param](tiny, max_tokens=24)


async def test_every_way_to_ask_gives_the_text_of_generate(model: Model, tiny: LanguageModel) -> None:
    text = tiny.generate(model.plain(QUESTION), max_new_tokens=24).text
    assert QUESTION not in text
    assert model.ask(QUESTION).text == (await model.aask(QUESTION)).text == text
    for streamed in (model.stream(QUESTION), await model.astream(QUESTION)):
        assert "".join(streamed.pieces) == streamed.whole.text == text
        assert len(streamed.pieces) > 2


def test_text_ends_right_before_a_stop_string_of_several_characters(model: Model, tiny: LanguageModel) -> None:
    whole = model.ask(QUESTION).text
    stop = whole[5:8]
    expected = whole[: whole.index(stop)]
    assert model.ask(QUESTION, stop=[stop]).text == expected
    assert "".join(model.stream(QUESTION, stop=[stop]).pieces) == expected
    always = type(model)(tiny, max_tokens=24, stop=[stop])
    assert always.ask(QUESTION).text == expected
    assert always.ask(QUESTION, stop=[]).text == whole


def test_parameters_of_a_call_override_those_of_the_model(model: Model, tiny: LanguageModel) -> None:
    expected = tiny.generate(model.plain(QUESTION), max_new_tokens=5, temperature=0.9, seed=3)
    assert model.ask(QUESTION, max_tokens=5, temperature=0.9, seed=3).text == expected.text
    for name in ("max_tokens", "max_completion_tokens", "max_new_tokens"):
        assert model.ask(QUESTION, **{name: 7}).tokens[1] == 7
    assert type(model)(tiny, max_completion_tokens=6).ask(QUESTION).tokens[1] == 6
    with pytest.raises(TypeError, match="max_completion_tokens and max_tokens mean the same; give one of them"):
        model.ask(QUESTION, max_tokens=3, max_completion_tokens=4)
    with pytest.raises(TypeError, match="no parameter 'max_length'; known are"):
        model.ask(QUESTION, max_length=3)
    with pytest.raises(ValueError, match="max_lenght"):
        type(model)(tiny, max_lenght=3)


def test_another_model_named_in_a_call_is_loaded_once(model: Model, tmp_path: Path, tiny: LanguageModel) -> None:
    other = LanguageModel(tiny_model(seed=1, max_position_embeddings=4096), tiny.tokenizer)
    other.model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    name, prompt = str(tmp_path), model.plain(QUESTION)
    assert model.ask(QUESTION, model=name).text == other.generate(prompt, max_new_tokens=24).text
    assert model.ask(QUESTION).text == tiny.generate(prompt, max_new_tokens=24).text
    assert model.model.language_model_named(name) is model.model.language_model_named(name)


def test_the_default_model_comes_from_the_environment_or_an_error_says_how_to_pass_one(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTIPHON_MODEL", raising=False)
    with pytest.raises(ValueError, match="No model was given; pass language_model=, or model="):
        model.kind()
    monkeypatch.setenv("ANTIPHON_MODEL", "./nowhere")
    with pytest.raises(ValueError, match="There is no model folder"):
        model.kind()


def test_usage_model_name_finish_reason_and_steps_are_reported(model: Model, tiny: LanguageModel) -> None:
    expected = tiny.generate(model.plain(QUESTION), max_new_tokens=24)
    replies = [model.ask(QUESTION)]
    if not isinstance(model, LangChainText):  # whose stream yields texts only
        replies.append(model.stream(QUESTION).whole)
    for reply in replies:
        assert reply.tokens == (expected.usage.prompt_tokens, expected.usage.completion_tokens)
        assert (reply.facts["model"], reply.facts["finish_reason"]) == ("tiny", "length")
        assert (reply.facts["steps"]["tokens"], reply.facts["steps"]["steps"]) == (24, expected.steps.steps)


async def test_each_framework_counts_usage_once(tiny: LanguageModel) -> None:
    chunks = list(ChatAntiphon(language_model=tiny, max_tokens=24).stream(QUESTION))
    reporting = [chunk for chunk in chunks if chunk.usage_metadata or chunk.response_metadata.get("model_name")]
    assert reporting == [chunks[-1]]
    counter = TokenCountingHandler(tokenizer=tiny.tokenizer.encode)
    llm = AntiphonLLM(language_model=tiny, max_tokens=24, callback_manager=CallbackManager([counter]))
    messages = [ChatMessage(QUESTION)]
    llm.chat(messages)
    list(llm.stream_chat(messages))
    await llm.achat(messages)
    expected = tiny.generate([{"role": "user", "content": QUESTION}], max_new_tokens=24).usage.total_tokens
    assert counter.total_llm_token_count == 3 * expected


async def test_the_event_loop_is_not_blocked_during_generation(model: Model, tiny: LanguageModel) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    with recorded_forward_passes(tiny) as seen:
        await model.aask(QUESTION)
    ticking.cancel()
    assert ticks > 2 * len(seen)


async def test_leaving_a_stream_stops_generation(model: Model, tiny: LanguageModel) -> None:
    given = {"drafter": "nothing", "max_tokens": 400}
    with recorded_forward_passes(tiny) as seen:
        pieces: Any = model.aiterate(QUESTION, **given)
        async for _ in pieces:
            break
        await pieces.aclose()
        await asyncio.sleep(0.1)
        spent = len(seen)
        for _ in model.iterate(QUESTION, **given):
            break
        await asyncio.sleep(0.1)
        assert len(seen) <= 2 * spent
        assert spent < 20


async def test_a_cancelled_call_stops_and_frees_its_kv_cache(model: Model, tiny: LanguageModel) -> None:
    with recorded_forward_passes(tiny) as seen:
        error = await cancel_midway(model.aask(QUESTION, drafter="nothing", max_tokens=2000), seen)
        gc.collect()
        assert seen[-1].cache() is None
        assert error.__traceback__, "the traceback still refers to every frame of the call"
    assert (await model.aask(QUESTION)).text == model.ask(QUESTION).text


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", MODELS)
async def test_an_error_in_generation_reaches_the_caller_and_the_next_call_works(name: str) -> None:
    language_model = LanguageModel(tiny_model(), byte_tokenizer())
    broken = MODELS[name](language_model, max_tokens=50)
    broken.ask(QUESTION, max_tokens=2)
    calls = 0

    def fail(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise MemoryError("no memory left")

    hook = language_model.model.register_forward_pre_hook(fail)
    with pytest.raises(MemoryError, match="no memory left"):
        broken.stream(QUESTION, drafter="nothing")
    with pytest.raises(MemoryError, match="no memory left"):
        await broken.astream(QUESTION, drafter="nothing")
    with pytest.raises(MemoryError, match="no memory left"):
        await broken.aask(QUESTION, drafter="nothing")
    hook.remove()
    assert broken.ask(QUESTION, max_tokens=5).text


async def test_long_prompts_and_timeouts_raise(model: Model) -> None:
    with pytest.raises(ValueError, match="context window"):
        model.ask("x" * 5000)
    with pytest.raises(ValueError, match="context window"):
        await model.aask("x" * 5000)
    with pytest.raises(TimeoutError, match=r"1e-06 seconds"):
        model.ask(QUESTION, timeout=0.000001)
    with pytest.raises(TimeoutError, match=r"1e-06 seconds"):
        await model.astream(QUESTION, timeout=0.000001)
    with pytest.raises(ValueError, match="timeout is 0"):
        model.ask(QUESTION, timeout=0)
    assert model.ask(QUESTION, timeout=60).text == model.ask(QUESTION).text


@pytest.mark.parametrize("kind", [ChatAntiphon, TextLLM])
def test_a_prompt_that_is_too_long_is_langchains_error_too_and_its_hints_are_ignored(
    kind: Any, tiny: LanguageModel
) -> None:
    model = kind(language_model=tiny, max_tokens=2)
    for call in (model.invoke, lambda prompt: list(model.stream(prompt)), lambda prompt: model.batch([prompt, prompt])):
        with pytest.raises(ContextOverflowError, match="context window") as raised:
            call("x" * 5000)
        assert isinstance(raised.value, ContextLengthError)
    assert model.invoke("x", ls_structured_output_format={"schema": {}}, ls_own_hint=1)


async def test_a_batch_of_langchain_is_decoded_together_and_gives_the_same_texts(tiny: LanguageModel) -> None:
    sizes: list[tuple[int, int]] = []

    class BatchRecorder(LanguageModel):
        def generate_batch(self, prompts: Any, **given: Any) -> Any:
            sizes.append((len(prompts), given["batch_size"]))
            return super().generate_batch(prompts, **given)

    llm = TextLLM(language_model=BatchRecorder(tiny.model, tiny.tokenizer), max_tokens=24, batch_size=3)
    prompts: list[Any] = [f"{QUESTION} {number}" for number in range(4)]
    alone = [llm.invoke(prompt) for prompt in prompts]
    assert llm.batch(prompts) == alone == await llm.abatch(prompts)
    assert sizes == [(4, 3)]
    chat = ChatAntiphon(language_model=tiny, max_tokens=24)
    assert [answer.text for answer in chat.batch(prompts)] == [chat.invoke(prompt).text for prompt in prompts]


def test_llama_index_passes_text_to_models_without_a_chat_template_and_if_it_is_formatted(tiny: LanguageModel) -> None:
    plain = AntiphonLLM(language_model=LanguageModel(tiny_model(), byte_tokenizer(chat=False)), max_tokens=9)
    assert not plain.metadata.is_chat_model
    assert plain.complete(QUESTION).text == plain.language_model.generate(QUESTION, max_new_tokens=9).text
    written = f"user: {QUESTION}\nassistant: "
    expected = plain.language_model.generate(written, max_new_tokens=9).text
    carrying = ChatMessage(QUESTION, additional_kwargs={"references": [QUESTION]})
    assert [plain.chat([each]).message.content for each in (ChatMessage(QUESTION), carrying)] == [expected] * 2
    formatted = AntiphonLLM(language_model=tiny, max_tokens=24).complete(QUESTION, formatted=True).text
    assert formatted == tiny.generate(QUESTION, max_new_tokens=24).text


@pytest.fixture(scope="module")
def thinking() -> LanguageModel:
    return writing(thinking_tokenizer("decides"), "<think>\nBees do.\n</think>\n\nSo it is.")


@pytest.mark.parametrize("name", [*CHATS, "llama-index text"])
async def test_thinking_is_separated_from_the_answer(name: str, thinking: LanguageModel) -> None:
    model, thought = MODELS[name](thinking), "Bees do." if name in CHATS else ""
    for streamed in (model.stream("Why?"), await model.astream("Why?")):
        assert ("".join(streamed.pieces), streamed.whole.text) == ("So it is.", "So it is.")
        assert ("".join(streamed.thinking), streamed.whole.thinking) == (thought, thought)
    reply = model.ask("Why?")
    assert (reply.text, reply.thinking) == ("So it is.", thought)
    short = model.ask("Why?", max_tokens=12)
    assert (short.text, short.facts["ended_in_thinking"]) == ("", True)


def test_thinking_is_counted_and_earlier_thinking_is_passed_to_the_template(thinking: LanguageModel) -> None:
    usage: Any = ChatAntiphon(language_model=thinking).invoke("Why?").usage_metadata
    assert usage["output_token_details"]["reasoning"] > len("Bees do.")
    thought = AIMessage("So.", additional_kwargs={"reasoning_content": "Bees."})
    standard = AIMessage([{"type": "reasoning", "reasoning": "Bees."}, {"type": "text", "text": "So."}])
    blocks = ChatMessage(role="assistant", blocks=[ThinkingBlock(content="Bees."), *ChatMessage("So.").blocks])
    for [turn] in (langchain_turns([thought]), langchain_turns([standard]), llama_index_turns([blocks])):
        assert (turn["content"], turn["reasoning_content"]) == ("So.", "Bees.")


@pytest.fixture
def reader() -> Any:
    """A model with its own prompt format."""
    model = ScriptedModel(answer=quoting_answer)
    model.model.config.prompt_format = "reader"
    Settings.tokenizer = model.tokenizer.encode
    yield model
    Settings.tokenizer = None  # type: ignore[assignment]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_answers_from_documents_alone_refuses_other_prompts(name: str, reader: ScriptedModel) -> None:
    with pytest.raises(
        RuntimeError, match=r"'scripted' answers questions from documents alone: use Rag, .*AntiphonQuery"
    ):
        MODELS[name](reader).ask("Which bees?")
    engine = RetrieverQueryEngine(ContractNodes(), get_response_synthesizer(llm=AntiphonLLM(language_model=reader)))
    with pytest.raises(RuntimeError, match="AntiphonQueryEngine"):
        engine.query(question(0))
    answer = ChatAntiphon(language_model=reader).with_retriever(Contracts()).invoke(question(0))["answer"].text
    assert tenant_document(0)[0] in str(answer)
