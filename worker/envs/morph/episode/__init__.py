"""The episode: environments of all runs of an assignment, stepped together."""
