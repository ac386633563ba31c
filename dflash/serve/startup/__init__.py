"""Start of the server process: sockets, responses while the model loads, the line that ends the start."""
