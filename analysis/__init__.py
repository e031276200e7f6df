"""Reading records: tables and comparisons. Nothing here starts a process."""
