"""Table of the types of content blocks and items: each is read, written as text, left out, or refused in its own words."""
