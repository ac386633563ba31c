"""The GPU runtime: compilation, launches, buffers and streams."""
