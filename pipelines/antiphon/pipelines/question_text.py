"""Checks of a question, and the kinds of questions that `extractive` and `reader` cannot answer.

They quote single sentences of English passages. If they refuse a question of another kind, or would quote at random,
the refusal names the limit in one sentence.
"""

from __future__ import annotations

import re

MAX_QUESTIONS = 3
"""Maximum number of questions in one text that are answered separately."""

LONG_QUESTION_WORDS = 60
"""Questions with more words are not compared completely with the passages."""

_EXTRACTIVE = "The bundled model quotes single sentences"
SUMMARY_LIMIT = (
    f"{_EXTRACTIVE} and cannot summarise documents; ask about one thing in them, or choose an instruct model (--model)."
)
LENGTH_LIMIT = f"Only the first {LONG_QUESTION_WORDS} words or so of a question are compared; ask a shorter one."
LANGUAGE_LIMIT = (
    "The bundled models read English, and the question seems to be {}; ask in English, or choose a multilingual "
    "embedder (index --embedder bge-m3) and model (--model)."
)
SEVERAL_LIMIT = f"{_EXTRACTIVE} for one question at a time; ask one after the other."

_REQUEST = r"(please|can you|could you|would you|i (want|need|would like)|give me|write|make|create|show me)"
_KIND = r"(a |an |the )?((short|brief|quick|long|detailed) )?(summary|overview|outline|gist)"
_DOCUMENTS = r"(the|these|this|those|my|your) (documents?|docs|files?|texts?|folder|corpus)"
_SUMMARY = re.compile(
    rf"^\W*({_REQUEST}\b[\w ]{{0,12}}?\b){{0,4}}(summari[sz]e|sum up|{_KIND}\b|tl;?dr)"
    rf"|\bwhat (is|are) (in )?((all|each of) )?{_DOCUMENTS} (all )?about\b"
    rf"|\bwhat do {_DOCUMENTS} (say|contain|cover)\W*$",
    re.IGNORECASE,
)
_ASKS = "what|which|who|whom|whose|when|where|why|how|is|are|was|were|do|does|did|can|could|should|may|must|will"
_BETWEEN = re.compile(
    rf"(?<=[?？])\s+(?=\S)|,?\s+(?:and|or)\s+(?:also\s+|then\s+)?(?=(?:{_ASKS})\s+(?:\w+\s+){{2}})", re.IGNORECASE
)
_WORD = re.compile(r"[^\W\d_]+")
_LANGUAGES = {
    "German": "der die das ist und nicht wie wird ich ein eine einen dem den für mit auf von kann wo wer warum welche "
    "welcher welches gibt es wann sind zu im zum man werden wieviel viele hat haben muss",
    "French": "le la les est et pas comment quel quelle quels quelles un une des du de pour avec dans sur je que qui "
    "où pourquoi combien il elle sont ce cette puis peut faut quand ne au aux",
    "Spanish": "el la los las es y no cómo como qué que cuál cuáles un una de del para con en por dónde donde quién "
    "cuándo cuando cuántos cuánto son se puedo puede hay al",
    "Italian": "il lo la gli le è e non come che cosa quale quali un una di del della per con nel dove chi perché "
    "quando quanto quanti sono si posso può ci",
    "Portuguese": "o os as é e não como que qual quais um uma de do da para com em por onde quem quando quantos quanto "
    "são se posso pode há ao",
    "Dutch": "de het een is en niet hoe wat welke ik van voor met op waar wie waarom wanneer zijn kan er te hoeveel "
    "moet worden wordt",
    "Polish": "jest i nie jak co jaki jaka jakie w na do z ile gdzie kto kiedy dlaczego się czy są można",
    "Swedish": "är och inte hur vad vilken vilket jag en ett för med på av var vem varför när kan man det att som",
}
_ENGLISH = frozenset(
    re.findall(
        r"\S+",
        "the is are was were do does did how what which who when where why can could should i you it of to in on for "
        "with and or not a an my there many much be has have if by from at that this",
    )
)
_FUNCTION_WORDS = {language: frozenset(words.split()) - _ENGLISH for language, words in _LANGUAGES.items()}
_SCRIPTS = (
    ("Greek", "\u0370", "\u03ff"),
    ("Russian or another language in Cyrillic", "\u0400", "\u052f"),
    ("Hebrew", "\u0590", "\u05ff"),
    ("Arabic or another language in its script", "\u0600", "\u06ff"),
    ("Hindi or another language of India", "\u0900", "\u0dff"),
    ("Thai", "\u0e00", "\u0e7f"),
    ("Japanese", "\u3040", "\u30ff"),
    ("Chinese", "\u3400", "\u9fff"),
    ("Korean", "\uac00", "\ud7af"),
)


def check_text(question: str) -> None:
    """Check that a question can be encoded as UTF-8, which tokenizers need.

    Raises:
        ValueError: it cannot be encoded, for example because the terminal uses another encoding.
    """
    try:
        question.encode()
    except UnicodeEncodeError as error:
        invalid = question[error.start : error.end].encode(errors="surrogateescape")
        raise ValueError(
            f"The question holds bytes that are not UTF-8 ({invalid!r} after {error.start} characters); type it in "
            "UTF-8, or check the encoding of your terminal."
        ) from None


def check_question(question: str) -> None:
    """Check that a question is not empty, and that it can be encoded.

    Raises:
        ValueError: it is empty, or see `check_text`.
    """
    check_text(question)
    if not question.strip():
        raise ValueError("The question is empty; ask something.")


def asks_for_summary(question: str) -> bool:
    """Return whether a question asks for a summary of documents, which no single sentence is."""
    return bool(_SUMMARY.search(question))


def limit_of(question: str) -> str:
    """Return one sentence on why quotes may not answer a question; empty if nothing is known."""
    if asks_for_summary(question):
        return SUMMARY_LIMIT
    if language := other_language(question):
        return LANGUAGE_LIMIT.format(language)
    if len(question.split()) > LONG_QUESTION_WORDS:
        return LENGTH_LIMIT
    return SEVERAL_LIMIT if questions_in(question) else ""


def questions_in(question: str) -> tuple[str, ...]:
    """Return the questions of a text that asks several, at most `MAX_QUESTIONS`; empty if it asks one."""
    found = [part.strip(" ,;") for part in _BETWEEN.split(question) if _WORD.search(part)]
    return tuple(found[:MAX_QUESTIONS]) if len(found) > 1 else ()


def other_language(question: str) -> str:
    """Return the name of a question's language if it is probably not English; else an empty text."""
    letters = [letter for letter in question if letter.isalpha()]
    for name, first, last in _SCRIPTS:
        if 2 * sum(first <= letter <= last for letter in letters) > len(letters):
            return name
    words = [word.lower() for word in _WORD.findall(question)]
    counts = {name: sum(word in own for word in words) for name, own in _FUNCTION_WORDS.items()}
    best = max(counts, key=lambda name: counts[name])
    english = sum(word in _ENGLISH for word in words)
    return best if counts[best] >= 2 and counts[best] > 2 * english else ""
