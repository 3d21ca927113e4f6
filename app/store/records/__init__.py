"""What training hands in and what is made of it: points, events, rounds, files, reports."""
