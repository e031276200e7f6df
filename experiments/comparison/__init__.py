"""Two servers compared in earnest: A/B runs and campaigns of them, from the keys of a preset to decisions on record."""
