"""The load says of a server that does not answer here why, and goes on with another."""

from __future__ import annotations

import sys

import pytest

from tests.load.__main__ import held_against
from tests.load.clients import Target
from tests.load.questions import Asked
from tests.load.servers import Command

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


def test_a_server_that_cannot_answer_here_is_named_and_another_asked(capsys: pytest.CaptureFixture[str]) -> None:
    failing = Command("failing", (sys.executable, "-u", "-c", FAILING))
    ending = Command("ending", (sys.executable, "-c", "raise SystemExit('no such device')"))
    tiny = Command("tiny", (sys.executable, "-m", "tests.pipelines.server.tiny_server"))
    questions = [Asked([{"role": "user", "content": "How do bees live?"}], [])]
    target = Target("", "tiny", 4, False)
    found = list(held_against([failing, ending], tiny, target, questions, clients=2, seconds=0.5))
    assert [bool(outcome.answers) for outcome in found] == [True], "the other one, once"
    told = capsys.readouterr().out
    assert "failing does not answer here ({'500 no_gpu': " in told
    assert "a GPU is needed" in told
    assert "ending did not come up: no such device\n" in told
    assert "\ntiny: " in told
