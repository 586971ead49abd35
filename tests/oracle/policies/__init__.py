"""Which values to evict: one file per policy, all in `catalogue.py`."""
