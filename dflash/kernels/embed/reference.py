"""Definition: unpacked rows of the table."""


def embed(ids, table, out):
    """Compute ``out[i] = table[ids[i]]``."""
    for i, row in enumerate(ids):
        out[i] = table.rows(slice(row, row + 1)).unpacked()[0]
