"""Gymnasium tasks behind the lockstep protocol."""
