"""Index folders on disk: passages, keyword index and vectors, replaced atomically by each change."""
