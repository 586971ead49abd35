"""Implementations of operators: what each reads, saves and allocates, and how far it is from plain PyTorch."""
