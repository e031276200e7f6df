"""Making the miniature: problems, tokenizer, a differentiable forward, pretraining and draft training."""
