"""Making the files of scheduled verification: temperatures for confidences, and a table of step times."""
