"""Passages and LlamaIndex's nodes, each made from the other. Knows nothing of models."""

from __future__ import annotations

from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, TextNode

from antiphon.integrations.coercion import coerce_passages
from antiphon.retrieval import Passage

SOURCE = "source"
"""The key of a node's metadata that holds a passage's source; its place stands in the node itself."""


def node_of(passage: Passage) -> NodeWithScore:
    """The passage as LlamaIndex has it: the same text and id, its source in the metadata, and its score."""
    node = TextNode(
        id_=passage.id,
        text=passage.text,
        metadata={**passage.metadata, SOURCE: passage.source},
        start_char_idx=passage.start,
        end_char_idx=passage.end,
    )
    return NodeWithScore(node=node, score=passage.score)


def passage_of(given: object) -> Passage | None:
    """The passage that a text, or a node with or without a score, is; None for anything else."""
    if isinstance(given, Passage):
        return given
    if isinstance(given, str):
        return Passage.at("", 0, given)
    if isinstance(given, NodeWithScore):
        return _passage(given.node, given.score)
    return _passage(given, None) if isinstance(given, BaseNode) else None


def passages_of(given: object, name: str = "references") -> list[Passage]:
    """The passages that a caller handed over: a list of texts or nodes.

    Raises:
        TypeError: it is no list, or something in it is neither.
    """
    return coerce_passages(given, passage_of, alone=(BaseNode, NodeWithScore), kinds="texts or nodes", name=name)


def _passage(node: BaseNode, score: float | None) -> Passage:
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    metadata = node.metadata
    start = getattr(node, "start_char_idx", None) or 0
    return Passage(
        text=text,
        id=node.node_id,
        source=str(metadata.get(SOURCE) or metadata.get("file_path") or metadata.get("file_name") or ""),
        start=start,
        end=start + len(text),
        score=score,
        metadata={key: value for key, value in metadata.items() if key != SOURCE},
    )
