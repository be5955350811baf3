"""Policies that come from Python packages, so that no hub is needed: found, converted once, kept in a cache."""
