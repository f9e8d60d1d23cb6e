"""Draft from any text: the file to edit is the reference, and the edited file comes several tokens per step.

python examples/edit_with_references.py
"""

from __future__ import annotations

import argparse

from antiphon.accel import LanguageModel

SOURCE = """def area(width, height):
    return width * height


def volume(width, height, depth):
    return area(width, height) * depth
"""


def main() -> None:
    """Generate with the source as a reference, then without drafts, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, or a name on the hub")
    arguments = parser.parse_args()

    model = LanguageModel.from_pretrained(arguments.model, dtype="float32")
    prompt = [{"role": "user", "content": f"Repeat this file, with the function area renamed to surface:\n\n{SOURCE}"}]

    drafted = model.generate(prompt, references=[SOURCE], max_new_tokens=60)
    plain = model.generate(prompt, drafter="nothing", max_new_tokens=60)
    print(drafted.text)
    print(f"{drafted.steps.tokens_per_step:.2f} tokens per step with drafts, 1.00 without")
    print("identical text:", drafted.text == plain.text)


if __name__ == "__main__":
    main()
