"""Settings for every test: property tests find the same examples every time, and no test looks at the clock."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "lowtide",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lowtide")
