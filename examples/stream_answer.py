"""Stream an answer from an index piece by piece, with the citations at the end.

antiphon index docs/ --out my-index
python examples/stream_answer.py my-index "What does lossless mean?"
"""

from __future__ import annotations

import argparse

import rich

from antiphon.pipelines import Rag
from antiphon.retrieval import Retriever


def main() -> None:
    """Open the index and print each piece of the answer as soon as it is generated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("index")
    parser.add_argument("question")
    parser.add_argument("--model", default="reader", help="reader, smollm2, a folder, or a name on the hub")
    arguments = parser.parse_args()

    rag = Rag(Retriever.open(arguments.index), arguments.model)
    with rag.stream(arguments.question, max_new_tokens=100) as stream:
        for piece in stream:
            print(piece, end="", flush=True)
    print("\n")
    rich.print(stream.answer)


if __name__ == "__main__":
    main()
