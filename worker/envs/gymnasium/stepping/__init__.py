"""How the environments of runs are stepped: in turn, in processes, batched, or by simulators of our own."""
