"""Converts between passages and LlamaIndex's nodes."""

from __future__ import annotations

from dataclasses import replace

from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, TextNode

from antiphon.integrations.references import References
from antiphon.retrieval import Passage

SOURCE, ALSO_IN = "source", "also_in"
"""The metadata keys for a passage's source, and for the sources of other passages with the same text."""


def node_of(passage: Passage) -> NodeWithScore:
    """Return the passage as a node with the same text, id and score, and its source in the metadata."""
    also = {ALSO_IN: list(passage.also_in)} if passage.also_in else {}
    node = TextNode(
        id_=passage.id,
        text=passage.text,
        metadata={**passage.metadata, SOURCE: passage.source, **also},
        start_char_idx=passage.start,
        end_char_idx=passage.end,
    )
    return NodeWithScore(node=node, score=passage.score)


def passage_of(given: object) -> Passage | None:
    """Convert a text, or a node with or without a score, to a passage; return None for anything else."""
    if isinstance(given, Passage):
        return given
    if isinstance(given, str):
        return Passage.at("", 0, given)
    if isinstance(given, NodeWithScore):
        return _passage(given.node, given.score)
    return _passage(given, None) if isinstance(given, BaseNode) else None


def _passage(node: BaseNode, score: float | None) -> Passage:
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    metadata = node.metadata
    source = str(metadata.get(SOURCE) or metadata.get("file_path") or metadata.get("file_name") or "")
    others = {key: value for key, value in metadata.items() if key not in (SOURCE, ALSO_IN)}
    passage = Passage.at(source, getattr(node, "start_char_idx", None) or 0, text, others)
    return replace(passage, id=node.node_id, score=score, also_in=tuple(map(str, metadata.get(ALSO_IN) or ())))


REFERENCES_OF_NODES = References(passage_of, alone=(BaseNode, NodeWithScore), kinds="texts or nodes")
passages_of = REFERENCES_OF_NODES.passages
