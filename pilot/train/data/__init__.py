"""The samples that a rank gets, how they are read, and the random numbers of samples and models."""
