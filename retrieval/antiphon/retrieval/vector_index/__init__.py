"""Search for the nearest vectors in this process: exactly, or approximately with FAISS."""
