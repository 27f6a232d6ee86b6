"""Test-wide settings: hypothesis profiles, chosen by ``HYPOTHESIS_PROFILE``."""

import os

from hypothesis import HealthCheck, settings

_slow_is_fine = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=25, **_slow_is_fine)
settings.register_profile("ci", max_examples=100, derandomize=True, **_slow_is_fine)
settings.register_profile("soak", max_examples=2000, **_slow_is_fine)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
