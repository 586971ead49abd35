"""A forward as a chain of links, and what methods for chains need of it."""
