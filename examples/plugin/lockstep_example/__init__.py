"""An example of a package that adds rewards and an environment to Lockstep."""
