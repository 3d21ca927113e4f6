"""Pure rules: what may be submitted, states, plans, statistics. No input or output."""
