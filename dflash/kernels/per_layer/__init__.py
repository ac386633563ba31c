"""Embeddings of a token for each layer, from its own and from the projection of its embedding; on a GPU."""
