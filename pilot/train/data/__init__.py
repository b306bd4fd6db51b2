"""Which samples a rank gets, how they are read, and the random numbers that they and the model draw."""
