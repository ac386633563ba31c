"""Write drafts and heads as folders of ``config.json`` and a safetensors file, in the layouts of other programs."""

from dflash.model.export.write import LAYOUTS, export_draft

__all__ = ["LAYOUTS", "export_draft"]
