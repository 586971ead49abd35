"""Offsets for buffers whose lifetimes are known: one placer per file."""
