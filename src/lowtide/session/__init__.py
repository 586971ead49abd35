"""The state of one fitted model between its calls."""
