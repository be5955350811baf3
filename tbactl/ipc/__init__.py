"""What processes share: rings, records, the control page, a child's pulse."""
