"""Learning algorithms behind one interface; PPO is the one entry."""
