"""Several processes: ranks, DTensors, how a model is wrapped."""
