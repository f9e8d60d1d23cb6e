"""Train a small EAGLE head for a Llama model: `python -m recipes.eagle_head SAMPLES.jsonl --out FOLDER`.

The head is one layer of the model's size. From the embedding of a token and the model's last hidden state before it, it
predicts the hidden state at that token, and the model's output matrix turns that into the next token. It is trained on
recorded conversations of any origin, towards the model's own most likely next tokens. vLLM loads the folder as
``{"method": "eagle", "model": FOLDER}``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, smooth_l1_loss
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from antiphon.accel import resolve_model
from antiphon.pipelines.benchmark.samples import load_samples
from recipes.options import Out, Seed

LENGTH = 256
"""Number of tokens of a training text: the end of a conversation. The model reads as many tokens before it."""

HIDDEN_WEIGHT = 0.1
"""Weight of the difference between hidden states; the loss of the tokens has weight 1."""


class EagleHead(nn.Module):
    """An EAGLE head of one layer, whose weights have the names that vLLM expects.

    Args:
        config: Configuration of the model.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([LlamaDecoderLayer(config, layer_idx=0)])
        self.layers[0].input_layernorm = nn.Identity()
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Return the predicted hidden state at each token, shape (texts, tokens, hidden size).

        Args:
            embedded: Embeddings of the tokens, shape (texts, tokens, hidden size).
            hidden: The model's last hidden states before these tokens, of the same shape.
        """
        mixed = self.fc(torch.cat((embedded, hidden), dim=-1))
        positions = torch.arange(mixed.shape[1])[None]
        found = self.layers[0](mixed, position_embeddings=self.rotary(mixed, positions), position_ids=positions)
        return found if isinstance(found, Tensor) else found[0]

    def save(self, folder: Path, config: Any) -> None:
        """Write the head and its configuration to a folder.

        Args:
            folder: The folder, made if missing.
            config: Configuration of the model.
        """
        folder.mkdir(parents=True, exist_ok=True)
        settings = config.to_dict() | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
        (folder / "config.json").write_text(json.dumps(settings, indent=1, default=str), encoding="utf-8")
        weights = {name: weight.contiguous() for name, weight in self.state_dict().items()}
        save_file(weights, folder / "model.safetensors")


@torch.no_grad()
def hidden_states(model: Any, text: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the last `LENGTH` tokens of a text, padded with -1, and the hidden states at them, padded with zeros.

    Args:
        model: The model.
        text: Token ids.
    """
    hidden = model.model(torch.tensor([text[-2 * LENGTH :]])).last_hidden_state[0, -LENGTH:].float()
    tokens = torch.tensor(text[-LENGTH:])
    missing = LENGTH - len(tokens)
    return pad(tokens, (0, missing), value=-1), pad(hidden, (0, 0, 0, missing))


def loss(head: EagleHead, model: Any, tokens: Tensor, hidden: Tensor) -> Tensor:
    """Return the training loss of a batch of texts.

    Args:
        head: The head.
        model: The model, for its embeddings and output matrix.
        tokens: Token ids, shape (texts, tokens); -1 after the end of a text.
        hidden: The model's hidden states at them, shape (texts, tokens, hidden size).
    """
    is_text = tokens[:, 1:] >= 0
    embedded = model.get_input_embeddings()(tokens[:, 1:].clamp(min=0)).float()
    noise = (torch.rand_like(hidden[:, :-1]) - 0.5) * 0.2
    with torch.autocast("cpu", torch.bfloat16):
        predicted = head(embedded, hidden[:, :-1] + noise)[is_text]
        expected = hidden[:, 1:][is_text]
        scores = model.lm_head(predicted.to(model.dtype)).float()
        targets = model.lm_head(expected.to(model.dtype)).argmax(-1)
    return cross_entropy(scores, targets) + HIDDEN_WEIGHT * smooth_l1_loss(predicted.float(), expected)


def main(
    samples: Annotated[list[Path], typer.Argument(help="JSONL files of recorded questions and answers.")],
    out: Out,
    model_name: Annotated[str, typer.Option("--model", "-m", help="smollm2, a folder or a hub name.")] = "smollm2",
    batch: Annotated[int, typer.Option(help="Number of texts in a batch.")] = 8,
    epochs: Annotated[int, typer.Option(help="How often each text is seen.")] = 5,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    seed: Seed = 1,
) -> None:
    """Train a head on recorded conversations; 200 of them take minutes on one CPU core with SmolLM2-135M."""
    torch.manual_seed(seed)
    folder = resolve_model(model_name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).requires_grad_(requires_grad=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for sample in [sample for file in samples for sample in load_samples(file)]:
        question, answer = {"role": "user", "content": sample.prompt}, {"role": "assistant", "content": sample.response}
        text = tokenizer.apply_chat_template([question, answer], tokenize=False)
        found.append(hidden_states(model, tokenizer(text, add_special_tokens=False)["input_ids"]))
    tokens, hidden = torch.stack([each[0] for each in found]), torch.stack([each[1] for each in found])
    typer.echo(f"{len(found)} texts")
    head = EagleHead(model.config)
    optimizer = torch.optim.AdamW(head.parameters(), lr=learning_rate, betas=(0.9, 0.95))
    steps = epochs * -(-len(found) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=0.1)
    for epoch in range(epochs):
        for part in torch.randperm(len(found)).split(batch):  # type: ignore[no-untyped-call]
            value = loss(head, model, tokens[part], hidden[part])
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(head.parameters(), 0.5)
            optimizer.step()
            schedule.step()
        typer.echo(f"epoch {epoch + 1} of {epochs}: loss {value.item():.3f}")
    head.save(out, model.config)


if __name__ == "__main__":
    typer.run(main)
