"""Empty: the stand-in needs only `serving`."""
