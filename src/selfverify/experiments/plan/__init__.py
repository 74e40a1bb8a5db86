"""What one step of a recipe takes, said before it is run."""
