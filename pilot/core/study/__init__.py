"""Studies: trials of one script with different parameters, of which the better ones train longer."""
