"""Indexes in tables of PostgreSQL with pgvector, which several servers share. psycopg is imported at first use."""
