"""Results that a user holds: a plan, a frontier, a verification. Needs no torch."""
