"""Compare curves by what theory says about them, without a run."""
