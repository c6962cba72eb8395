"""Rules that hold a curve's clock, and the function that decides whether it is held."""
