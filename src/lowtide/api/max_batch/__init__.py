"""`lowtide.max_batch`: the largest size whose training step fits a budget."""
