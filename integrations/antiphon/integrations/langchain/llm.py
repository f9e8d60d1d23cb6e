"""An Antiphon language model as a LangChain LLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.caches import BaseCache
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.globals import get_llm_cache
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.llms import BaseLLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from pydantic import ConfigDict

from antiphon.accel import Completion
from antiphon.integrations.hidden_references import REFERENCES, HiddenReferences
from antiphon.integrations.langchain.base_model import AntiphonBaseModel
from antiphon.integrations.langchain.cache_keys import KeyedCache
from antiphon.integrations.langchain.outputs import CITATIONS, citations, metadata, usage
from antiphon.integrations.langchain.references import references_of
from antiphon.integrations.model_call import ModelCall
from antiphon.integrations.stream_readers import AsyncStreamReader
from antiphon.pipelines import passage_references

TRACED = ("callbacks", "tags", "metadata", "run_name", "run_id")
"""Arguments of `generate` that concern traces only."""


class AntiphonLLM(AntiphonBaseModel, BaseLLM):
    """A local model that continues text, with drafts from the prompt and from ``references=[...]`` of a call.

    Several prompts of one ``generate`` or ``batch`` share forward passes, ``batch_size`` at a time. For models with a
    chat template use `ChatAntiphon`, which takes the same parameters.
    """

    model_config = ConfigDict(extra="forbid")

    batch_size: int = 8

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[str]:
        """Yield the text piece by piece; references do not get into traces. See `BaseLLM.stream`."""
        return super().stream(input, config, stop=stop, **_hide_references(kwargs))

    def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[str]:
        """Yield the text piece by piece, asynchronously; ending the iteration ends the generation."""
        return super().astream(input, config, stop=stop, **_hide_references(kwargs))

    def generate(self, prompts: list[str], stop: list[str] | None = None, *given: Any, **kwargs: Any) -> LLMResult:
        """Generate for several prompts; the cache key includes all arguments. See `BaseLLM.generate`."""
        return BaseLLM.generate(self._cached_by(kwargs), prompts, stop, *given, **kwargs)

    async def agenerate(
        self, prompts: list[str], stop: list[str] | None = None, *given: Any, **kwargs: Any
    ) -> LLMResult:
        """Generate for several prompts asynchronously. See `BaseLLM.agenerate`."""
        return await BaseLLM.agenerate(self._cached_by(kwargs), prompts, stop, *given, **kwargs)

    def _cached_by(self, given: dict[str, Any]) -> AntiphonLLM:
        """Return the model with a cache whose key includes this call's arguments, which LangChain's own key omits."""
        cache = get_llm_cache() if self.cache is None or self.cache is True else self.cache
        parameters = {name: value for name, value in given.items() if name not in (*TRACED, REFERENCES)}
        passages = references_of((), given.get(REFERENCES))
        if not isinstance(cache, BaseCache) or not (parameters or passages):
            return self
        return self.model_copy(update={"cache": KeyedCache(cache, parameters, passages)})

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        calls = [self._model_call(prompt, stop, kwargs) for prompt in prompts]
        first = calls[0]
        if len(calls) == 1 or first.timeout is not None:
            return self._result(calls, [call.complete() for call in calls])
        references = [passage_references(first.passages)] * len(calls)
        completions = first.language_model.generate_batch(
            prompts, references=references, batch_size=self.batch_size, **first.parameters
        )
        return self._result(calls, completions)

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        calls = [self._model_call(prompt, stop, kwargs) for prompt in prompts]
        return self._result(calls, await asyncio.gather(*map(self._acomplete, calls)))

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        call = self._model_call(prompt, stop, kwargs)
        with call.stream() as stream:
            for piece in stream:
                chunk = GenerationChunk(text=piece)
                if run_manager:
                    run_manager.on_llm_new_token(piece, chunk=chunk)
                yield chunk
        yield GenerationChunk(text="", generation_info=self._generation_info(call, stream.completion))

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        call = self._model_call(prompt, stop, kwargs)
        async with AsyncStreamReader(call.stream) as reading:
            async for piece in reading:
                if piece.is_thinking:
                    continue
                chunk = GenerationChunk(text=piece.text)
                if run_manager:
                    await run_manager.on_llm_new_token(piece.text, chunk=chunk)
                yield chunk
        yield GenerationChunk(text="", generation_info=self._generation_info(call, reading.completion))

    def _model_call(self, prompt: str, stop: list[str] | None, given: dict[str, Any]) -> ModelCall:
        model = given.get("model", self.model)
        parameters, timeout = self.parameters(stop, {k: v for k, v in given.items() if k not in (REFERENCES, "model")})
        return ModelCall(
            self.language_model_named(model),
            model,
            prompt,
            references_of((), given.get(REFERENCES)),
            parameters,
            timeout,
        )

    async def _acomplete(self, call: ModelCall) -> Completion:
        async with AsyncStreamReader(call.stream) as reading:
            async for _ in reading:
                pass
        return reading.completion

    def _result(self, calls: list[ModelCall], completions: list[Completion]) -> LLMResult:
        generations = [
            [Generation(text=completion.text, generation_info=self._generation_info(call, completion))]
            for call, completion in zip(calls, completions, strict=True)
        ]
        return LLMResult(generations=generations, llm_output={"model_name": calls[0].model})

    def _generation_info(self, call: ModelCall, completion: Completion) -> dict[str, Any]:
        found = citations(call, completion.text)
        facts = {**metadata(call, completion), "usage": usage(completion)}
        return {**facts, CITATIONS: found} if found else facts


def _hide_references(given: dict[str, Any]) -> dict[str, Any]:
    references = given.get(REFERENCES)
    return given if references is None else {**given, REFERENCES: HiddenReferences(references_of((), references))}
