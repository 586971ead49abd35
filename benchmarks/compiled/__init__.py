"""Compiled training steps: torch.compile, its own budget, and its kernels under lowtide's."""
