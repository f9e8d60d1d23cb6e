"""Search for the nearest vectors in this process: exact, or approximate with FAISS. Works on vectors, not passages."""
