"""One model on several devices: which weights, heads and bytes go where. Nothing here needs a GPU."""
