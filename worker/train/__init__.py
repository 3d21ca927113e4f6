"""The lockstep loop over rounds."""
