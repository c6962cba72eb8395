"""The tests of the clocks of all frameworks."""
