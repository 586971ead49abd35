"""lowtide by configuration, where a framework owns the training loop: one module per framework, imported by name."""
