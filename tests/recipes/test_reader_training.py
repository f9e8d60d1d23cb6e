"""Reader training: branches equal separate prompts, and interrupted runs resume exactly."""

import torch

from antiphon.accel.text.messages import encode_prompt
from antiphon.pipelines.prompt import reader_prompt
from antiphon.pipelines.quotes import Quote
from antiphon.retrieval import Passage
from recipes.reader.encoding import encode_example
from recipes.reader.example import Question, TrainingExample
from tests.tiny import EOS, byte_tokenizer, tiny_model

TOKENIZER = byte_tokenizer()
LESSON = TrainingExample(
    (Passage.at("a.txt", 0, "Bees dance."), Passage.at("b.txt", 0, "Wax melts.")),
    (
        Question("Who dances?", (Quote(1, "Bees dance."),)),
        Question("What melts", (Quote(2, "Wax melts."), Quote(1, "Bees dance."))),
        Question("Who sings?"),
    ),
)


def test_each_branch_has_the_logits_of_its_own_prompt() -> None:
    model = tiny_model()
    encoded = encode_example(LESSON, TOKENIZER)
    got = model(
        input_ids=encoded.tokens,
        position_ids=encoded.positions,
        attention_mask=encoded.mask,
        use_cache=False,
        logits_to_keep=encoded.sources,
    ).logits[0]
    at = 0
    for question in LESSON.questions:
        prompt = encode_prompt(reader_prompt(question.text, LESSON.passages).content, TOKENIZER)
        answer = [*TOKENIZER.encode(question.answer, add_special_tokens=False), EOS]
        plain = model(input_ids=torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
        assert encoded.targets[at : at + len(answer)].tolist() == answer
        torch.testing.assert_close(got[at : at + len(answer)], plain, atol=2e-4, rtol=0)
        at += len(answer)
    assert at == len(encoded.targets)
