"""Parse bodies of requests into frozen structs whose errors name field and value."""
