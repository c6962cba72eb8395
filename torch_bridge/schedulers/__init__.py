"""A curve as a torch scheduler, or for another setting of an optimizer."""
