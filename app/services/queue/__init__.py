"""Who is given what, and why a block waits: passes over the queue, claims, forecasts."""
