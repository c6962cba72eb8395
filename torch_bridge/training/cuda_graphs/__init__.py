"""Updates captured as CUDA graphs, and the conditions under which a graph stays valid."""
