"""Table of all request fields of known APIs: each is done, mapped to another, harmlessly ignored, or refused by name."""
