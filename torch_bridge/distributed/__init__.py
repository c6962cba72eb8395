"""Training over several processes: ranks, DTensors, wrapped models."""
