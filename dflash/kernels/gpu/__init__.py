"""The GPU runtime: compiling, launching, buffers and streams."""
