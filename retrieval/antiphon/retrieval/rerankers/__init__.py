"""Rerankers improve the order of the candidates of a search. To add one, see `protocol.Reranker` and `by_name`."""
