"""A LangChain chain that answers from an index and cites the passages.

pip install -c constraints.txt -e ".[langchain]"
antiphon index docs/ --out my-index
python examples/langchain_rag.py my-index "What does lossless mean?"
"""

from __future__ import annotations

import argparse

from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon


def main() -> None:
    """Build a retrieval chain from two objects and ask it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("index")
    parser.add_argument("question")
    parser.add_argument("--model", default="reader", help="reader, smollm2, a folder, or a name on the hub")
    arguments = parser.parse_args()

    retriever = AntiphonRetriever.open(arguments.index, k=3)
    chain = ChatAntiphon(model=arguments.model, max_tokens=100).with_retriever(retriever)
    output = chain.invoke(arguments.question)

    print(output["answer"].text)
    for citation in output["citations"]:
        print(f"  {citation['title']}: {citation['cited_text']!r}")


if __name__ == "__main__":
    main()
