"""What is wrong with draws, and by how much."""
