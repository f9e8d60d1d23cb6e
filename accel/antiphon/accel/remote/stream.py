"""Streams from a server. Received text is never lost, even if the connection breaks."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any

from antiphon.accel.decoding.stats import FinishReason, Summary
from antiphon.accel.remote.client import STREAM_ERRORS, shut_down, translate_error
from antiphon.accel.remote.errors import BrokenStreamError
from antiphon.accel.remote.thinking_tags import TaggedContent, UnaskedThinking
from antiphon.accel.text.completion import Completion, Piece, TextStream, Usage

FINISH_REASONS: Mapping[str, FinishReason] = {"length": "length", "abort": "cancelled"}
"""Finish reasons of servers. Any other reason, such as "tool_calls", becomes "stop"."""


class RemoteStream(TextStream):
    """A stream of a model on a server; its joined pieces are the text of the completion.

    The request is sent when the first piece is read. The server then generates until the text ends or the stream is
    closed. Any thread can close the stream, which closes the connection. The last piece contains the tool calls, each
    as JSON between ``<tool_call>`` tags.

    Args:
        base_url: Address of the server, for messages.
        send: Function that sends the request and returns its events.
        thinking: Decides how long thinking and answer may be; None: the model continues a text and does not think.
        response_prefix: Text that the server continues. It is the first piece, once the server has accepted the
            request.
    """

    def __init__(
        self,
        base_url: str,
        send: Callable[[], Any],
        *,
        thinking: UnaskedThinking | None = None,
        temperature: float = 0.0,
        repetition_penalty: float = 1.0,
        response_prefix: str = "",
    ) -> None:
        self._base_url = base_url
        self._send = send
        self._temperature = temperature
        self._repetition_penalty = repetition_penalty
        self._response_prefix = response_prefix
        self._thinking = thinking
        self._content = TaggedContent(thinking is not None and thinking.habits.opens_in_thinking)
        self._num_thoughts = self._num_answers = 0  # chunks of thinking and of answer
        self._response: Any = None
        self._events: Any = None
        self._calls: dict[int, dict[str, str]] = {}  # name and arguments of the tool calls so far
        self._usage: Any = None  # the latest token counts that the server reported
        self._speculation: Mapping[str, int] = {}  # what the server reported about drafts
        self._pieces: list[str] = []
        self._reasoning: list[str] = []
        self._ready: deque[Piece] = deque()  # pieces of the last chunk that were not requested yet
        self._tokens: list[int] = []
        self._num_chunks = 0
        self._started_at = self._first_at = self._last_at = 0.0
        self._server_finish: FinishReason | None = None  # events with counts may still follow
        self._finish: FinishReason | None = None
        self._is_closed = False

    def next_piece(self) -> Piece | None:
        """Return the next piece of thinking or answer; None at the end."""
        try:
            while not self._ready and self._finish is None and not self._is_closed:
                if piece := self._advance():
                    self._pieces.append(piece)
                    self._ready.append(Piece(piece))
        except BaseException:
            self._is_closed = True  # an interrupted read may have lost a piece, so continuing would leave a gap
            raise
        return self._ready.popleft() if self._ready else None

    @property
    def completion(self) -> Completion:
        """The completion, available after the stream has ended or was closed.

        Tokens, usage and steps come from the server's reports. If the server does not count tokens,
        each chunk counts as one token. If the server does not report drafts, ``steps.steps`` is 0.

        Raises:
            RuntimeError: The stream has not ended yet, or could not start.
        """
        if self._finish is None:
            raise RuntimeError("The stream has not ended; iterate over it to its end, or close it, for its completion.")
        counted = getattr(self._usage, "completion_tokens", None)
        num_tokens = self._num_chunks if counted is None else counted
        details = getattr(self._usage, "completion_tokens_details", None)
        return Completion(
            text="".join(self._pieces),
            finish_reason=self._finish,
            usage=Usage(
                _first(self._usage, "prompt_tokens") or 0,
                num_tokens,
                reasoning_tokens=_first(details, "reasoning_tokens") or self._num_thoughts,
            ),
            steps=self._steps(num_tokens),
            tokens=tuple(self._tokens),
            temperature=self._temperature,
            repetition_penalty=self._repetition_penalty,
            response_prefix=self._response_prefix,
            reasoning="".join(self._reasoning),
            ended_in_thinking=bool(self._reasoning) and not "".join(self._pieces).removeprefix(self._response_prefix),
        )

    def close(self) -> None:
        """Close the connection, which stops generation; the completion is the text received so far."""
        self._is_closed = True
        if self._finish is None and self._response is not None:
            shut_down(self._response)
        self._end("cancelled")

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens; 0 until the server has reported it."""
        return _first(self._usage, "prompt_tokens") or 0

    @property
    def reasoning_tokens(self) -> int:
        """Number of chunks of thinking so far."""
        return self._num_thoughts

    def tokens_from(self, first: int) -> list[int]:
        """Return the tokens from index ``first`` on, if the server reports them."""
        return self._tokens[first:]

    def _advance(self) -> str:
        """Return the text of the next chunk; at the end, the text of the tool calls."""
        try:
            if self._events is None:
                self._started_at = perf_counter()
                self._open()
                if self._is_closed:
                    return ""
                if self._response_prefix:
                    return self._response_prefix
            event = next(self._events, None)
        except STREAM_ERRORS as error:
            return self._break_off(error)
        if event is not None:
            return self._read(event)
        if self._server_finish is None:
            return self._break_off(None)
        thought, rest = self._content.finish()
        self._add_thought(thought)
        self._end(self._server_finish)
        return rest + "".join(map(_format_call, self._calls.values()))

    def _open(self) -> None:
        self._response = self._send()
        if self._is_closed:  # while the request was sent
            shut_down(self._response)
        self._events = iter(self._response)

    def _add_thought(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._ready.append(Piece(text, True))

    def _read(self, event: Any) -> str:
        """Return the text of an event: a ``ChatCompletionChunk`` or ``Completion`` of ``openai``."""
        self._last_at = perf_counter()
        self._usage = _first(event, "usage") or self._usage
        self._speculation = (_first(event, "metrics") or {}).get("speculative_decoding") or self._speculation
        choice = next(iter(_first(event, "choices") or ()), None)
        delta = _first(choice, "delta")
        content: str = _first(delta, "content") or ""
        tagged, text = self._content.push(content) if content else ("", _first(choice, "text") or "")
        tokens = _first(choice, "token_ids") or _first(delta, "token_ids") or ()
        calls = _first(delta, "tool_calls") or ()
        if finish := _first(choice, "finish_reason"):
            self._server_finish = FINISH_REASONS.get(finish, "stop")
        thought = (_first(delta, "reasoning_content", "reasoning") or "") + tagged
        if thought and not text and self._thinking is not None and self._thinking.must_restart():
            return self._restart()
        if self._thinking is not None and content and self._content.end in text and not self._reasoning:
            thought, text = self._move_to_thinking(text)
        self._add_thought(thought)
        self._num_thoughts += bool(thought)
        self._num_answers += bool(text)
        if content or text or thought or tokens or calls:
            self._first_at = self._first_at or self._last_at
            self._num_chunks += 1
        self._tokens += tokens
        for part in calls:  # arguments arrive in several events, and llama-cpp-python repeats the name in each
            call = self._calls.setdefault(_first(part, "index") or 0, {"name": "", "arguments": ""})
            function = _first(part, "function")
            call["name"] = call["name"] or _first(function, "name") or ""
            call["arguments"] += _first(function, "arguments") or ""
        if self._thinking is not None and self._thinking.is_over(self._num_thoughts, self._num_answers):
            self._end("length")
        return text

    def _restart(self) -> str:
        """Send the request again without a token limit, because thinking would use up the limit."""
        self._response.close()
        self._content = TaggedContent()
        self._open()
        return ""

    def _move_to_thinking(self, text: str) -> tuple[str, str]:
        """If an end tag has no start tag, treat the text before it as thinking, even if it was yielded as answer."""
        assert self._thinking is not None
        self._thinking.note(opens_in_thinking=True)
        before, _, answer = text.partition(self._content.end)
        self._content.state = "after"
        self._reasoning.append("".join(self._pieces))
        self._pieces, self._num_thoughts, self._num_answers = [], self._num_answers, 0
        return before, self._content.push(answer).answer

    def _break_off(self, error: Exception | None) -> str:
        """End an interrupted stream: raise an error with the received text, unless this object closed the stream."""
        is_closed_here = self._is_closed
        if error is not None and not self._num_chunks and not is_closed_here:
            self.close()
            raise translate_error(self._base_url, error) from error
        self._end("cancelled")
        if is_closed_here:
            return ""
        why = translate_error(self._base_url, error) if error else "the server ended it without a finish reason"
        count = sum(map(len, self._pieces))
        raise BrokenStreamError(f"The answer broke off after {count} characters: {why}", self.completion) from error

    def _steps(self, num_tokens: int) -> Summary:
        """Return a summary of the steps that the server reports.

        Each step emits its accepted tokens and a bonus token. In the last step, servers also count
        accepted tokens after the completion's end; the summary omits these tokens.
        """
        accepted = self._speculation.get("num_accepted_draft_tokens")
        draft_steps = self._speculation.get("num_spec_steps") or 0
        steps = 0 if accepted is None else max(num_tokens - accepted, 1 + draft_steps)
        return Summary(
            steps=steps,
            tokens=num_tokens,
            drafted=self._speculation.get("num_draft_tokens") or 0,
            accepted=max(num_tokens - steps, 0) if steps else 0,
            seconds=max(self._last_at - self._started_at, 0.0),
            prefill_seconds=max(self._first_at - self._started_at, 0.0),
        )

    def _end(self, finish: FinishReason) -> None:
        self._finish = self._finish or finish
        response, self._response = self._response, None
        if response is not None:
            with suppress(*STREAM_ERRORS, RuntimeError):  # broken, or in use by another thread
                response.close()


def _first(value: object, *names: str) -> Any:
    """Return the value of the first of these attributes that is neither missing nor empty, or None.

    Some servers omit fields that OpenAI's protocol requires, or use other names.
    """
    return next((found for name in names if (found := getattr(value, name, None))), None)


def _format_call(call: Mapping[str, str]) -> str:
    """Format a tool call as local models do: JSON between ``<tool_call>`` tags (Hermes, Qwen, SmolLM)."""
    try:
        arguments = json.loads(call["arguments"] or "{}")
    except json.JSONDecodeError:
        arguments = call["arguments"]  # kept although malformed; `parse_tool_calls` reports it
    content = json.dumps({"name": call["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{content}\n</tool_call>"
