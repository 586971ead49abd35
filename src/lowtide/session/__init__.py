"""What lives between the calls of one fitted model."""
