"""Which tokens may come next: penalties and biases, grammars of JSON schemas. Independent of drafts and models."""
