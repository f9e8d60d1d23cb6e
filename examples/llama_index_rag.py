"""A LlamaIndex query engine that answers from an index and cites its nodes.

pip install -c constraints.txt -e ".[llama-index]"
antiphon index docs/ --out my-index
python examples/llama_index_rag.py my-index "What does lossless mean?"
"""

from __future__ import annotations

import argparse

from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.query_engine import RetrieverQueryEngine

from antiphon.integrations.llama_index import AntiphonLLM, AntiphonRetriever, with_citations


def main() -> None:
    """Build a query engine with Antiphon's LLM and retriever, and ask it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("index")
    parser.add_argument("question")
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, or a name on the hub")
    arguments = parser.parse_args()

    llm = AntiphonLLM(model=arguments.model, max_tokens=60)
    Settings.tokenizer = llm.language_model.tokenizer.encode
    retriever = AntiphonRetriever.open(arguments.index, k=3)
    engine = with_citations(RetrieverQueryEngine(retriever, get_response_synthesizer(llm=llm)))
    response = engine.query(arguments.question)

    print(response)
    for citation in response.citations:
        print(f"  {citation.title}: {citation.cited_content.text!r}")


if __name__ == "__main__":
    main()
