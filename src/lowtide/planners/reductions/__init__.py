"""Smaller problems, each with its way back."""
