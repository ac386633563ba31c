"""Formats of tool calls, one file each, and what they share."""
