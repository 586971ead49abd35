"""Plans that offload values to the host and prefetch them."""
