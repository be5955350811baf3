"""The central store of trajectories: what is kept, what leaves, what is drawn."""
