"""Per-request memory: slots, paged latent cache, recurrent state."""
