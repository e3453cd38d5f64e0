"""Which sampler, or which setting of one, to use."""
