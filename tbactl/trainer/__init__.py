"""From trajectory groups to optimizer steps: the process that learns."""
