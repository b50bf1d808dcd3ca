"""One file for each neighbour. Nothing here is imported unless it is asked for."""
