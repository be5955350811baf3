"""Starts, watches, restarts and ends the processes of a run; owns its directory and its shared memory."""
