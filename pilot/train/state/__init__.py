"""What is trained, and how far: what a rank gives to a node that joins, and a checkpoint keeps."""
