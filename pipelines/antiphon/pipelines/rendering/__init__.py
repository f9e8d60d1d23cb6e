"""Answers and figures for display: in the terminal, in notebooks, as Markdown. Computes none of them."""
