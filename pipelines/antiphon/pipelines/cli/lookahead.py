"""The command `antiphon lookahead`: decodes one answer on several devices."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import MaxNewTokens, Precision
from antiphon.pipelines.cli.preparation import dtype_named, load_language_model
from antiphon.pipelines.rendering.sanitize import sanitize_json


def lookahead(
    prompt: Annotated[str, typer.Argument(help="The prompt.")],
    model: Annotated[str, typer.Option("--model", "-m", help="reader, smollm2, a folder or a hub name.")] = "smollm2",
    window: Annotated[int, typer.Option(help="Columns of the window: W.")] = 7,
    ngram: Annotated[int, typer.Option(help="Tokens per n-gram: N.")] = 5,
    guesses: Annotated[int, typer.Option(help="Maximum number of n-grams verified per step: G.")] = 7,
    unread: Annotated[bool, typer.Option("--unread", help="Take no n-grams from the prompt.")] = False,
    max_new_tokens: MaxNewTokens = 256,
    dtype: Precision = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer and its cost as one JSON object.")] = False,
) -> None:
    """Answer greedily with Lookahead decoding; processes started by torchrun share the work.

    Each process holds the whole model, on its own GPU if there are enough, and verifies a part of every draft.
    """
    from antiphon.accel.decoding.parallel import decode_parallel, process_group
    from antiphon.accel.decoding.stats import summarize
    from antiphon.accel.drafting.drafters import Lookahead
    from antiphon.accel.text.messages import encode_prompt
    from antiphon.pipelines.benchmark.jobs import question_case
    from antiphon.pipelines.question_text import check_text

    check_text(prompt)
    console.quiet_libraries()
    drafter = Lookahead(window, ngram, guesses, prompt_as_reference=not unread)
    with process_group() as own:
        loaded = load_language_model(model, device=own.device, dtype=dtype_named(dtype))
        tokens = encode_prompt(question_case(loaded, prompt, ()).prompt, loaded.tokenizer)
        ends = loaded.model.generation_config.eos_token_id
        steps = list(
            decode_parallel(
                loaded.model,
                tokens,
                drafter,
                max_new_tokens=max_new_tokens,
                ends=ends if isinstance(ends, list) else [] if ends is None else [ends],
            )
        )
    if own.rank:
        return
    summary = summarize(steps)
    text = loaded.tokenizer.decode([token for step in steps for token in step.tokens], skip_special_tokens=True)
    if as_json:
        typer.echo(sanitize_json({"text": text, "devices": own.size} | summary.as_dict()))
        return
    console.out.print(text, markup=False, highlight=False)
    cost = f"{summary.tokens} tokens in {summary.steps} steps ({summary.tokens_per_step:.2f} a step)"
    console.err.print(f"{cost}, {summary.rows_per_step:.0f} rows on each of {own.size} devices", markup=False)
