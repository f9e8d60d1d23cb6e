"""Render answers and results: in the terminal, as HTML in notebooks, and as Markdown."""
