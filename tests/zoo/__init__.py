"""Unmodified networks of the ecosystem, small, and what lowtide promises of each: `catalogue.py` lists them."""
