"""The episode: environments of all runs of a block share, stepped together."""
