"""Structured answers of the bundled model: python -m tests.structured. Exits with 1 if one is wrong.

Three classes, greedy and sampled, in Python, LangChain and LlamaIndex: every answer has to be an object of its class.
In Python each is decoded again without drafts and has to be the same. Answers share forward passes, eight at a time;
with --timed some are repeated one after the other, along with free text of the same length.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from time import perf_counter
from typing import Annotated, Any, Literal

import torch
import typer
from pydantic import BaseModel

from antiphon.accel import Completion, LanguageModel
from antiphon.integrations.langchain import ChatAntiphon
from antiphon.integrations.llama_index import AntiphonLLM
from antiphon.pipelines import resolve_model

TOKENS = 120
"""The most that an answer may have."""

AT_ONCE = 8
"""Number of concurrent requests of a framework."""

NAMES = ("Anna Moser", "Ben Okafor", "Chiara Rossi", "David Levy", "Eun-ji Park", 'Fatima "Faye" Haddad', "Göran Ås")
CITIES = ("Graz", "Lagos", "Turin", "Haifa", "Busan", "Tangier", "Malmö", "Osaka", "Quito", "Leeds", "Perth")
THINGS = ("a lamp", "two chairs", "a crate of apples", "a bicycle", "nine books", "a violin", "a stove", "seeds")


class Visitor(BaseModel):
    """A visitor of a library."""

    name: str
    age: int
    is_member: bool


class Speed(Enum):
    """How fast something is sent."""

    NORMAL = "normal"
    EXPRESS = "express"


class Address(BaseModel):
    """Where something is sent."""

    city: str
    country: Literal["Austria", "Nigeria", "Italy", "Korea", "another"]


class Parcel(BaseModel):
    """A parcel that is sent."""

    content: str
    speed: Speed
    to: Address
    weight: float | None


class Entry(BaseModel):
    """A line of a list."""

    item: str
    count: int


class Shopping(BaseModel):
    """A list of things to buy."""

    buyer: str
    entries: list[Entry]


CLASSES: dict[str, type[BaseModel]] = {"flat": Visitor, "nested with enums": Parcel, "list of objects": Shopping}


@dataclass(slots=True)
class Count:
    """How often a face kept what it promises, and what went wrong first."""

    asked: int = 0
    parsed: int = 0
    same: int = 0
    wrong: str = ""

    def note(self, parsed: bool, same: bool, what: str) -> None:
        """Count one answer."""
        self.asked, self.parsed, self.same = self.asked + 1, self.parsed + parsed, self.same + same
        if not (parsed and same):
            self.wrong = self.wrong or what


@dataclass(slots=True)
class Spent:
    """Tokens and seconds."""

    tokens: int = 0
    seconds: float = 0.0

    def add(self, completion: Completion) -> None:
        """One more answer, its prompt not counted."""
        self.tokens += completion.steps.tokens - 1
        self.seconds += completion.steps.seconds - completion.steps.prefill_seconds

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Times:
    """Seconds of the answers of one class and of free text of the same length."""

    form: Spent = field(default_factory=Spent)
    plain: Spent = field(default_factory=Spent)
    free: Spent = field(default_factory=Spent)
    free_plain: Spent = field(default_factory=Spent)


def question(number: int) -> str:
    """A few sentences to make an object of, another one for each number."""
    name, city, thing = (of[number % len(of)] for of in (NAMES, CITIES, THINGS))
    return (
        f"{name} from {city} is {20 + number % 60} years old, has been a member of the library since spring, and sends "
        f"{thing} home by express. Fill in what is asked for."
    )


def asked(wanted: type[BaseModel], number: int) -> Any:
    """Ask a model in Python."""
    schema = wanted.model_json_schema()
    return [{"role": "user", "content": f"{question(number)}\n\nAnswer in JSON of this schema:\n{schema}"}]


def in_langchain(model: LanguageModel, wanted: type[BaseModel], number: int, sampling: dict[str, Any]) -> Any:
    """The answer by LangChain, every other one as a call of a tool."""
    chat: Any = ChatAntiphon(language_model=model, max_tokens=TOKENS, **sampling)
    method = ("function_calling", "json_schema")[number % 2]
    return chat.with_structured_output(wanted, method=method).invoke(question(number))


def in_llama_index(model: LanguageModel, wanted: type[BaseModel], number: int, sampling: dict[str, Any]) -> Any:
    """The answer by LlamaIndex."""
    llm: Any = AntiphonLLM(language_model=model, max_tokens=TOKENS, **sampling)
    return llm.as_structured_llm(wanted).complete(question(number)).raw


Asking = Callable[[LanguageModel, type[BaseModel], int, dict[str, Any]], Any]

FACES: dict[str, Asking] = {"LangChain": in_langchain, "LlamaIndex": in_llama_index}


def try_python(model: LanguageModel, wanted: type[BaseModel], cases: int, sampling: dict[str, Any]) -> Count:
    """All cases in Python, drafted and plain."""
    count, questions = Count(), [asked(wanted, number) for number in range(cases)]
    given: Any = {
        "json_schema": wanted.model_json_schema(),
        "max_new_tokens": TOKENS,
        "seeds": range(cases),
        **sampling,
    }
    drafted = model.generate_batch(questions, **given)
    plain = model.generate_batch(questions, drafter="nothing", **given)
    for one, other in zip(drafted, plain, strict=True):
        try:
            wanted.model_validate_json(one.text)
            parses = True
        except ValueError:
            parses = False
        count.note(parses, one.text == other.text, f"drafted: {one.text!r}, plain: {other.text!r}")
    return count


def try_face(ask: Asking, model: LanguageModel, wanted: type[BaseModel], cases: int, sampling: dict[str, Any]) -> Count:
    """All cases in a framework, several at once."""
    count = Count()

    def answer(number: int) -> Any:
        try:
            return ask(model, wanted, number, {**sampling, "seed": number})
        except Exception as error:  # noqa: BLE001 - whatever a user would have seen
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(answer, range(cases)):
            count.note(isinstance(found, wanted), True, repr(found))
    return count


def measured(model: LanguageModel, wanted: type[BaseModel], cases: int) -> Times:
    """What greedy answers take that are asked one after the other, and free texts of their lengths."""
    times = Times()
    for number in range(cases):
        given: Any = {"json_schema": wanted.model_json_schema(), "max_new_tokens": TOKENS}
        drafted = model.generate(asked(wanted, number), **given)
        times.form.add(drafted)
        times.plain.add(model.generate(asked(wanted, number), drafter="nothing", **given))
        turns: Any = [{"role": "user", "content": question(number)}]
        length = max(drafted.steps.tokens, 2)
        times.free.add(model.generate(turns, max_new_tokens=length))
        times.free_plain.add(model.generate(turns, max_new_tokens=length, drafter="nothing"))
    return times


def report_speed(name: str, times: Times) -> None:
    """One line: tokens per second of answers in a form and of free text."""
    drafted, plain = times.form.rate / times.free.rate, times.plain.rate / times.free_plain.rate
    typer.echo(
        f"{name}: {times.form.rate:.1f} tokens per second, free text {times.free.rate:.1f}: {drafted:.2f} of it; "
        f"without drafts {times.plain.rate:.1f} and {times.free_plain.rate:.1f}: {plain:.2f}"
    )


def run(model: LanguageModel, name: str, cases: int) -> bool:
    """All cases of one class, with a line for each face and mode; whether all were as promised."""
    wanted, is_right = CLASSES[name], True
    for mode, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        sampling = {"temperature": temperature}
        faces = {"Python": partial(try_python, model, wanted, cases, sampling)}
        faces |= {face: partial(try_face, ask, model, wanted, cases, sampling) for face, ask in FACES.items()}
        for face, try_all in faces.items():
            count = try_all()
            same = f", {count.same} of {count.asked} the same drafted and plain" if face == "Python" else ""
            typer.echo(f"{name}, {mode}, {face}: {count.parsed} of {count.asked} parse{same}")
            if count.wrong:
                is_right = False
                typer.echo(f"    {count.wrong}")
    return is_right


def main(
    cases: Annotated[int, typer.Option(min=1, help="How many questions for each class and mode.")] = 100,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    only: Annotated[str | None, typer.Option(help=f"One class alone: {', '.join(CLASSES)}.")] = None,
    timed: Annotated[int, typer.Option(min=0, help="How many questions for each class are timed as well.")] = 0,
    engine: Annotated[str, typer.Option(help="Who runs the model: auto, torch or openvino.")] = "auto",
) -> None:
    """Ask SmolLM2 for objects of three classes, and count failures."""
    classes = [name for name in CLASSES if only in (None, name)]
    if not classes:
        raise typer.BadParameter(f"There is no class {only!r}; there are {', '.join(CLASSES)}.", param_hint="--only")
    warnings.filterwarnings("ignore", message="The `json` method is deprecated")  # LlamaIndex's own call
    torch.set_num_threads(threads)
    model = LanguageModel.from_pretrained(resolve_model("smollm2"), dtype=torch.float32, engine=engine)
    model.generate("Once upon a time", max_new_tokens=8)  # self-tests and measurements run once per model
    started = perf_counter()
    right = [run(model, name, cases) for name in classes]
    if timed:
        for name in classes:
            report_speed(name, measured(model, CLASSES[name], timed))
    typer.echo(f"{perf_counter() - started:.0f} s")
    raise typer.Exit(code=0 if all(right) else 1)


if __name__ == "__main__":
    typer.run(main)
