"""A LlamaIndex query engine that answers from an index and cites its nodes.

pip install -c constraints.txt -e ".[llama-index]"
antiphon index docs/ --out my-index
python examples/llama_index_rag.py my-index "What does lossless mean?"
"""

from __future__ import annotations

import argparse

from antiphon.integrations.llama_index import AntiphonLLM, AntiphonQueryEngine, AntiphonRetriever


def main() -> None:
    """Build a query engine with Antiphon's LLM and retriever, and ask it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("index")
    parser.add_argument("question")
    parser.add_argument("--model", default="reader", help="reader, smollm2, a folder, or a name on the hub")
    arguments = parser.parse_args()

    llm = AntiphonLLM(model=arguments.model, max_tokens=60)
    engine = AntiphonQueryEngine(AntiphonRetriever.open(arguments.index, k=3), llm)
    response = engine.query(arguments.question)

    print(response)
    for citation in response.citations:
        print(f"  {citation.title}: {citation.cited_content.text!r}")


if __name__ == "__main__":
    main()
