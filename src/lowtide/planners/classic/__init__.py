"""The classical methods, for comparison and for proof on small graphs; none of them is part of the portfolio."""
