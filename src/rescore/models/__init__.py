"""What is trained: networks, critics, and the one way to take a gradient step."""
