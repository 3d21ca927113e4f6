"""All tables, for SQLite and PostgreSQL alike."""
