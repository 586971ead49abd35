"""What it brings that operators have more than one implementation."""
