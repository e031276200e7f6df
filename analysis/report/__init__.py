"""One self-contained HTML page from the records of an output directory: no network, no script, readable on a phone."""
