"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A busy machine makes one example slow, or the drawing of the first ones; how long a test may take in all is pytest's
# `timeout`. The same examples everywhere, so that what passed once passes again; HYPOTHESIS_PROFILE=explore looks for
# others.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("tbactl", derandomize=True, **PATIENT)
settings.register_profile("explore", **PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tbactl"))
