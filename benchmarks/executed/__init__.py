"""Plans carried out: bytes, bits and seconds, beside plain PyTorch and what else people use."""
