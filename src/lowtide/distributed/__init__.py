"""Several ranks that train one model: one plan for all of them, by vote."""
