"""A server of the Model Context Protocol: search, answers and documents for agents."""
