"""OpenAI's Responses API: bodies to chat requests, completions to items and events."""
