"""Programs that measure: run with ``python -m benchmarks.<name>``."""
