"""The load test reports servers that cannot run on this machine and goes on with others."""

from __future__ import annotations

import sys

import pytest

from tests.load.__main__ import compare
from tests.load.clients import Target
from tests.load.questions import Question
from tests.load.servers import Command

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

FAILING = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Failing(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        self.send_response(500)
        self.end_headers()
        self.wfile.write(b'{"error": {"message": "no", "type": "server_error", "param": null, "code": "no_gpu"}}')
        print("a GPU is needed", flush=True)

HTTPServer(("127.0.0.1", int(sys.argv[-1])), Failing).serve_forever()
"""


def test_a_server_that_cannot_answer_is_reported_and_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    failing = Command("failing", (sys.executable, "-u", "-c", FAILING))
    ending = Command("ending", (sys.executable, "-c", "raise SystemExit('no such device')"))
    tiny = Command("tiny", (sys.executable, "-m", "tests.pipelines.server.tiny_server"))
    questions = [Question([{"role": "user", "content": "How do bees live?"}], [])]
    target = Target("", "tiny", 4, False)
    found = list(compare([failing, ending], tiny, target, questions, clients=2, seconds=0.5))
    assert [bool(result.answers) for result in found] == [True], "the replacement, once"
    output = capsys.readouterr().out
    assert "failing does not answer on this machine ({'500 no_gpu': " in output
    assert "a GPU is needed" in output
    assert "ending did not start: no such device\n" in output
    assert "\ntiny: " in output
