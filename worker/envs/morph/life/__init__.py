"""The life of grafts: stages, gates, ramps, governor, and what is legal."""
