"""From a problem to a schedule with proofs: one planner per file, listed in `catalogue.py`."""
