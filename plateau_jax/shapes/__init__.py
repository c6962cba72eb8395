"""The shapes of segments, one file for each family."""
