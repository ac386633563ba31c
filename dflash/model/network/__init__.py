"""Networks as programs: ops over named buffers, built by functions that read as their formula."""
