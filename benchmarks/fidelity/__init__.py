"""Whether training stays the same bits, on networks, processors, releases and steps that nobody chose."""
