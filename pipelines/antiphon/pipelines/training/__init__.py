"""How what ships with the package was trained: the reader, and what BiTA learned; one loop for both."""
