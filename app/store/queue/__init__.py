"""Blocks, leases and workers: every transition of a state."""
