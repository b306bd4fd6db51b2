"""What programs ask of a pool: which one it is, its trainers, their output. `pilot.submit` and the CLI share it."""
