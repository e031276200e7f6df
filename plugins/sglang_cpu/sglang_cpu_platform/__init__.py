"""SGLang on a plain CPU, for development: an out-of-tree platform, and a small model to serve."""
