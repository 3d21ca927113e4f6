"""Calls of workers under a lease, and what follows when blocks stop, end or fall silent."""
