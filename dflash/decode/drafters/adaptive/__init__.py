"""The drafter that chooses the strategy with the lowest expected time per token."""
