"""What no schedule can beat: proved floors on bytes and lower bounds on time."""
