"""The Ling network as functions of packed weights and a window of rows."""
