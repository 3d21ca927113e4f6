"""The engine for both databases, its migrations, and how a process comes to it."""
