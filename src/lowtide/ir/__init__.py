"""The vocabulary: frozen values without behaviour of their own, and without torch."""
