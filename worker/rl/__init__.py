"""Reinforcement learning. Knows torch, numpy and the keyed generators only."""
