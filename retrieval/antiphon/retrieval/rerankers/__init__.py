"""Rerankers: a better order for the candidates of a search. To add one, see `protocol.Reranker` and `by_name`."""
