"""Is the output still right: gates, evidence and the pure rules that turn them into verdicts."""
