"""Settings for every test: property tests find the same examples every time, and no test looks at the clock."""

import os
import signal
from pathlib import Path

import platformdirs
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

# A suite started in the background of a shell inherits an ignored SIGINT; tests of Ctrl-C need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Every test makes its plans itself; those of the plan cache turn it on.
os.environ.setdefault("LOWTIDE_PLAN_CACHE", "0")

# Tests that bring an empty cache still share one build of the arena.
os.environ.setdefault("LOWTIDE_SHIM_DIR", str(Path(platformdirs.user_cache_dir("lowtide")) / "shim"))
