"""The reader: how a small language model is taught to answer by quoting. Knows nothing of retrieval at run time.

A room of the pipelines, because its lessons are made of what they join: passages, and the prompt they are put into.
"""
