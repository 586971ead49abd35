"""Measurements behind every figure that lowtide quotes. Each module is one command, and fails on a missing row."""
