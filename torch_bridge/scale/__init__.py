"""More than one process, and more than fits in memory."""
