"""Number of examples per property test: hypothesis profiles, by ``HYPOTHESIS_PROFILE``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_slow_is_fine = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=25, **_slow_is_fine)
settings.register_profile("ci", max_examples=40, derandomize=True, **_slow_is_fine)
settings.register_profile("soak", max_examples=300, **_slow_is_fine)

_name = os.environ.get("HYPOTHESIS_PROFILE", "dev")
settings.load_profile(_name)

costly = settings(max_examples=settings().max_examples * (10 if _name == "soak" else 3) // 10)
"""For a law whose examples take more than some ten milliseconds each: three tenths of the others',
all in a soak."""
