"""Smoke tests of the benchmarks, on CPU."""
