"""An Antiphon language model as a LangChain LLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.llms import BaseLLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from pydantic import ConfigDict, PrivateAttr

from antiphon.accel import Completion
from antiphon.accel.text.parameters import ContextLengthError
from antiphon.integrations.langchain.base_model import AntiphonBaseModel
from antiphon.integrations.langchain.documents import hide_arguments, references_of
from antiphon.integrations.langchain.outputs import CITATIONS, annotate, metadata, usage
from antiphon.integrations.model_call import AnswerState, ModelCall
from antiphon.pipelines import passage_references

TRACED = ("callbacks", "tags", "metadata", "run_name", "run_id")
"""Arguments of `generate` that concern traces only."""


class AntiphonLLM(AntiphonBaseModel, BaseLLM):
    """A local model that continues text; drafts come from the prompt and from ``references=[...]`` of a call.

    The prompts of one ``generate`` or ``batch`` call share forward passes, up to ``batch_size`` prompts at a time.
    For models with a chat template use `ChatAntiphon`, which takes the same parameters.
    """

    model_config = ConfigDict(extra="forbid")

    batch_size: int = 8

    _call_arguments: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {**super()._identifying_params, **self._call_arguments}

    def stream(self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[str]:
        """Yield the text piece by piece. Traces do not contain the references. See `BaseLLM.stream`."""
        return super().stream(input, config, **hide_arguments(kwargs))

    def astream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[str]:
        """Yield the text piece by piece, asynchronously; ending the iteration ends the generation."""
        return super().astream(input, config, **hide_arguments(kwargs))

    def generate(self, prompts: list[str], stop: list[str] | None = None, *given: Any, **kwargs: Any) -> LLMResult:
        """Generate for several prompts; the cache key includes all arguments. See `BaseLLM.generate`."""
        return BaseLLM.generate(self._keyed_by(kwargs), prompts, stop, *given, **kwargs)

    async def agenerate(
        self, prompts: list[str], stop: list[str] | None = None, *given: Any, **kwargs: Any
    ) -> LLMResult:
        """Generate for several prompts asynchronously. See `BaseLLM.agenerate`."""
        return await BaseLLM.agenerate(self._keyed_by(kwargs), prompts, stop, *given, **kwargs)

    def _keyed_by(self, given: dict[str, Any]) -> AntiphonLLM:
        """Return a model whose cache key includes the arguments of this call. LangChain's own key omits them."""
        keyed = self.model_copy()
        keyed._call_arguments = {name: value for name, value in hide_arguments(given).items() if name not in TRACED}
        return keyed

    def _generate(
        self, prompts: list[str], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> LLMResult:
        calls = [self._model_call(prompt, stop, kwargs) for prompt in prompts]
        first = calls[0]
        if len(calls) == 1 or first.timeout is not None:
            return self._result(calls, [call.complete() for call in calls])
        references = [passage_references(first.passages)] * len(calls)
        try:
            completions = first.language_model.generate_batch(
                prompts, references=references, batch_size=self.batch_size, **first.parameters
            )
        except ContextLengthError as error:
            raise first.context_error(str(error)) from error
        return self._result(calls, completions)

    async def _agenerate(
        self, prompts: list[str], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> LLMResult:
        calls = [self._model_call(prompt, stop, kwargs) for prompt in prompts]
        return self._result(calls, await asyncio.gather(*(call.acomplete() for call in calls)))

    def _stream(
        self, prompt: str, stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[GenerationChunk]:
        call = self._model_call(prompt, stop, kwargs)
        for state in call.states():
            chunk = self._chunk(call, state)
            if run_manager and chunk.text:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self, prompt: str, stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[GenerationChunk]:
        call = self._model_call(prompt, stop, kwargs)
        async with aclosing(call.astates()) as states:
            async for state in states:
                chunk = self._chunk(call, state)
                if run_manager and chunk.text:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    def _model_call(self, prompt: str, stop: list[str] | None, given: dict[str, Any]) -> ModelCall:
        return self.text_call(prompt, references_of((), given), {**given, "stop": stop})

    def _chunk(self, call: ModelCall, state: AnswerState) -> GenerationChunk:
        """Return the chunk for one `AnswerState`. If the state adds only thinking, the chunk has no text."""
        info = None if state.completion is None else self._generation_info(call, state.completion)
        return GenerationChunk(text=state.delta, generation_info=info)

    def _result(self, calls: list[ModelCall], completions: list[Completion]) -> LLMResult:
        generations = [
            [Generation(text=completion.text, generation_info=self._generation_info(call, completion))]
            for call, completion in zip(calls, completions, strict=True)
        ]
        return LLMResult(generations=generations, llm_output={"model_name": calls[0].model})

    def _generation_info(self, call: ModelCall, completion: Completion) -> dict[str, Any]:
        found = annotate(completion.text, call.passages)
        facts = {**metadata(call, completion), "usage": usage(completion)}
        return {**facts, CITATIONS: found} if found else facts
