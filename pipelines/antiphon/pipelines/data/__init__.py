"""Data that ships with the package: documents, questions about them, and recorded answers. Runs no language model."""
