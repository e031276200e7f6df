"""DSpark: block drafts, their acceptance, and how many of them are worth verifying."""
