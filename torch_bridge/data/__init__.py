"""A loader that resumes in the middle of an epoch, and prefetching to the device."""
