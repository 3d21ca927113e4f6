"""Commands of an installation of the worker that need no server: data sets, environments, rewards."""
