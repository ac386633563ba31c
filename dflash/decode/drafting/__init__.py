"""Draft tokens: the value, the protocol of a drafter, and the shapes."""
