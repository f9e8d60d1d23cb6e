"""Drafting: propose a draft tree, verify it, and select the rows that are worth their cost.

These steps lead from the tokens of a passage to the rows of a forward pass:

1. ``drafters/token_index.py`` indexes the tokens of references, prompt and answer (`TokenIndex`).
2. ``drafters/*.py`` propose a draft tree from a token index or from the model's own logits.
3. ``calibration.py`` records how often the drafter was right, and corrects its estimated chances.
4. ``cost_model.py`` gives the seconds of a forward pass as a function of its rows and its context.
5. ``row_selection.py`` cuts drafts to the rows with the most expected tokens per second
   (`select_rows`). ``budget.py`` applies `select_rows` to one request (`AdaptiveBudget`), and to
   several requests that share a forward pass (`trim_drafts`).
6. ``tree.py`` computes the rows' depths and ancestor mask; ``verify.py`` finds the accepted path.

This package imports no model library.
"""
