"""Texts that ship with the package: documents, questions about them, recorded answers. Runs no language model."""
