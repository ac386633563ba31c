"""Recoveries: checks of each step that can change the output. Off unless a strategy has them."""
