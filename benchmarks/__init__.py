"""Measurements behind every figure that lowtide quotes; `README.md` is the table of contents. A command fails on a missing row."""
