"""What steps in where a text goes wrong; off until asked for."""
