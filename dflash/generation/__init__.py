"""From requests to text: engine thread, completions, streams, prompts, scoring."""
