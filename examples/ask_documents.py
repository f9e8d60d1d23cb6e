"""Index a folder, ask a question, and print the answer with its citations.

python examples/ask_documents.py docs/ "What does lossless mean?"
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon.pipelines import Rag
from antiphon.retrieval import Retriever, build_index


def main() -> None:
    """Read the arguments, build an index in a temporary folder, and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("question")
    parser.add_argument("--model", default="reader", help="reader, smollm2, a folder, or a name on the hub")
    arguments = parser.parse_args()

    with TemporaryDirectory() as temporary:
        index = Path(temporary) / "index"
        report = build_index([arguments.folder], index, embedder="minilm")
        print(f"{report.files} files, {report.passages} passages")

        answer = Rag(Retriever.open(index), arguments.model).ask(arguments.question, max_new_tokens=100)

    print(answer)
    for citation in answer.citations:
        place = f"{citation.source}, characters {citation.source_start}-{citation.source_end}"
        print(f"  {place}: {citation.text!r}")


if __name__ == "__main__":
    main()
