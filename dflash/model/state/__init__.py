"""Memory of sequences: pools of KV pages and recurrent slots, and how much of it fits."""
