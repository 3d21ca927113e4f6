"""Hosts, grafts and their optimisers as one network."""
