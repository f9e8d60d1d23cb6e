"""Recipe of the reader: a small language model trained to answer by quoting passages (`python -m recipes.reader`)."""
