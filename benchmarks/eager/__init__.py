"""Training without a graph inside a budget."""
