"""Is an environment or a reward fit for an experiment? What `lockstep env check` and `reward check` find out."""
