"""The definition: a row of the table, unpacked."""


def embed(ids, table, out):
    """``out[i] = table[ids[i]]``."""
    for i, row in enumerate(ids):
        out[i] = table.rows(slice(row, row + 1)).unpacked()[0]
