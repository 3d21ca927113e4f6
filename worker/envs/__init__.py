"""Environments. They know torch, numpy and the keyed generators only."""
