"""A batch-1 runtime for the Ling-3.0 family: KDA + MLA + MoE with speculative decoding, one window for everything."""
