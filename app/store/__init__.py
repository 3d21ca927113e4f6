"""The only package that knows SQLAlchemy: tables, queries, transitions. Services commit."""
