"""Database migrations (alembic)."""
