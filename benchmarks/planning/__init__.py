"""How good plans are, how soon, and how close to what is proved: planned, checked and simulated, nothing trained."""
