"""Choosing operators' implementations together with the schedule."""
