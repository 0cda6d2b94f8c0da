"""Memory: modes that fit, a profile of every phase, and a plan before the run."""
