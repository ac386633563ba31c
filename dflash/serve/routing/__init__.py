"""Choice of a replica for a request: prefix affinity, and the hints that a body gives. Needs no Ray."""
