"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# A busy machine makes one example slow; how long a test may take in all is pytest's `timeout`.
settings.register_profile("tbactl", deadline=None)
settings.load_profile("tbactl")
