"""Compare curves by their theoretical bounds, without a run."""
