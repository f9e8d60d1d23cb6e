"""A language model that lives elsewhere: what its server is, what is sent to it, and what comes back."""
