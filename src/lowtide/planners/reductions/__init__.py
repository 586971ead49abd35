"""Smaller problems, each with the inverse mapping."""
