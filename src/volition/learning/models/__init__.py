"""What can be learned of how entities respond."""
