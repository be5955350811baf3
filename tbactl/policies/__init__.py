"""Models that come in Python packages, so that no hub is needed: policies, converted once into a cache; encoders."""
