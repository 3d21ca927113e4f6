"""Statistics of experiments: exact tests, intervals, corrections, looks and planning.

The unit of analysis is the replicate (one training run of one arm); everything measured inside
a replicate is averaged before it arrives here. Pure functions of numpy arrays; a generator is
passed in where one is needed; nothing here reads a file, a clock or a global random state.
"""
