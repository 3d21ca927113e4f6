"""The ``lockstep`` command."""
