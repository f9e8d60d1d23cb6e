"""Segments of a streaming answer: the spans of passages that drafted text was copied from."""

import pytest

from antiphon.accel import Origin
from antiphon.pipelines.server.text_segments import SegmentTracker
from antiphon.retrieval import Passage


@pytest.mark.parametrize(
    ("passage", "answer", "expected"),
    [
        ("🐝 Honey keeps\nfor years.", "keeps for", "keeps\nfor"),
        ("The eﬃcient ﬁlter ﬂoats.", "efficient filter", "eﬃcient ﬁlter"),
        ("The cafe\u0301 is open.", "café is", "cafe\u0301 is"),
        ("Ｃｏｄｅ ＡＢＣ is old.", "Code ABC is", "Ｃｏｄｅ ＡＢＣ is"),
        ("He said “no way” twice.", '"no way" twice', "“no way” twice"),
        ("यह पुस्तकालय है।", "पुस्तकालय", "पुस्तकालय"),
    ],
)
def test_a_drafted_segment_has_its_span_in_the_passage(passage: str, answer: str, expected: str) -> None:
    tracker = SegmentTracker([Passage.at("a.txt", 0, "Another text."), Passage.at("b.txt", 0, passage)])
    [segment] = tracker.push(answer, [Origin(0, len(answer), 1, True)])
    assert segment["passage"] == 2
    assert passage[segment["start"] : segment["end"]] == expected
