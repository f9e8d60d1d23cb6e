"""Ask `antiphon serve` with the openai package; any OpenAI-compatible client works the same way.

antiphon serve --index my-index --model reader
python examples/openai_client.py "What does lossless mean?"
"""

from __future__ import annotations

import argparse

from openai import OpenAI


def main() -> None:
    """Send one chat completion request to the model that answers from the documents, and print its annotations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="as listed by the server; by default the one that answers from the documents")
    arguments = parser.parse_args()

    client = OpenAI(base_url=arguments.url, api_key="none")
    model = arguments.model or [each.id for each in client.models.list()][-1]
    message = {"role": "user", "content": arguments.question}
    answer = client.chat.completions.create(model=model, messages=[message], max_tokens=100).choices[0].message

    print(answer.content)
    for annotation in answer.annotations or []:
        print(" ", annotation)


if __name__ == "__main__":
    main()
