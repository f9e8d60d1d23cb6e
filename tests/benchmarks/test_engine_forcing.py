"""A replay on OpenVINO's engine: the most likely token of every row is the recorded one, however it is read."""

import pytest

from antiphon.accel.drafting.draft import chain

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from benchmarks.teacher_forcing import EngineForcing
from tests.accel.openvino.builders import engine_of, model_of, step, text_of

ANSWER, END = [7, 9, 11], 3


def test_the_head_in_8_bits_is_forced_for_one_token_and_for_several() -> None:
    engine = engine_of(model_of())
    assert engine.graph.lm_head is not None
    text, draft = text_of(6), chain([7, 9, 5])
    free = step(engine, engine.sequence(tenant=object()), text, draft)
    with EngineForcing(engine, end=END) as forcing:
        forcing.follow(len(text), ANSWER)
        forced = step(engine, engine.sequence(tenant=object()), text, draft)
        expected = [*ANSWER, END]
        assert [forced.argmax(row) for row in range(-1, 3)] == expected
        for rows in (range(-1, 3), [-1, 0, 1, 2]):
            tokens, shares = forced.top_k(rows, 2)
            assert tokens[:, 0].tolist() == expected
            assert (shares[:, 0] > 0.99).all()
        assert forced.head(2).argmax(1) == ANSWER[2]
        assert forced.tensor().argmax(-1).tolist() == expected
    after = step(engine, engine.sequence(tenant=object()), text, draft)
    assert after.tensor().tolist() == free.tensor().tolist()
    assert [after.argmax(row) for row in range(-1, 3)] == free.tensor().argmax(-1).tolist() != expected
