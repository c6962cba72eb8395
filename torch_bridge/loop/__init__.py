"""What goes around an update: evaluation, metrics, profiling, the batch size."""
