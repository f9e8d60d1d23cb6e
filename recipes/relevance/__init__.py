"""Recipe of the encoders that score which line of a passage answers a question (`python -m recipes.relevance`)."""
