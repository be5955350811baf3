"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# A busy machine makes one example slow; how long a test may take in all is pytest's `timeout`. The same examples
# everywhere, so that what passed once passes again; HYPOTHESIS_PROFILE=explore looks for others.
settings.register_profile("tbactl", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tbactl"))
