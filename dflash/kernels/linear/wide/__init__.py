"""The packed multiply of up to 128 tokens on Hopper, with one read of the weights."""
