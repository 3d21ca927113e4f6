"""The worker: binds one device, trains blocks, speaks HTTP to the control plane only."""
