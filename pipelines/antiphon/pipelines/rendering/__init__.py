"""Answers to be looked at: in the terminal, in a notebook, as Markdown. Knows how they look and makes none of them."""
