"""Indexes in tables of PostgreSQL with pgvector, which several servers can share. psycopg is imported at first use."""
