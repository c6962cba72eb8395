"""Arrays that are made once, a loader that resumes in mid-epoch, and copies to the device that run ahead."""
