"""Inductor's own kernels as recipes of a graph, to be planned like operators."""
