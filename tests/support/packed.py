"""Recorded data in files packed by xz."""

import json
import lzma


def packed_text(path):
    """Return the text of a file."""
    return lzma.decompress(path.read_bytes()).decode()


def packed_lines(path):
    """Return the JSON values of a file's lines."""
    return [json.loads(line) for line in packed_text(path).splitlines()]
