"""Shows a run: live, from another terminal, after its end, or as plain lines."""
