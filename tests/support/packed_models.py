"""The larger golden models are stored as `X.gguf.xz` and unpacked beside themselves, where git ignores them."""

import lzma
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data" / "golden"


def unpack_golden_models():
    """Write each `X.gguf` that is missing. Several processes may do so at once: a file appears only when it is whole."""
    for packed in FOLDER.glob("*/*.gguf.xz"):
        path = packed.with_suffix("")
        if not path.exists():
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
                partial.write(lzma.decompress(packed.read_bytes()))
            Path(partial.name).replace(path)
