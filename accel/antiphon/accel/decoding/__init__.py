"""The loop from a prepared request to its last step. Knows engines by their protocol alone."""
