"""Trains DSpark drafts: the target's half makes hidden states, the draft's half turns them into weights."""
