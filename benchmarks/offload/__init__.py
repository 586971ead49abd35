"""What it brings that values, weights and optimizer state may move to the host."""
