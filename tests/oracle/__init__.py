"""The readable twin of the engine behind `lowtide.eager`, which tests compare with it. Torch-free.

`src/core/eager/` has the same parts under the same names. `replay` runs a recorded step as
`lowtide.eager_engine.replay` does: every number, and the digest of all evictions and recomputations, has to be equal.
Nothing in `src/` imports it.
"""
