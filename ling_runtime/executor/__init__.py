"""What runs one step: the path from token ids to committed tokens."""
