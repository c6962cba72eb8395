"""A training run on the host: its position, its record, and how it resumes."""
