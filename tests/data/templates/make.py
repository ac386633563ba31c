"""Record what Transformers renders: ``python make.py`` rewrites the three ``*.json.xz`` beside it.

Needs ``transformers`` 5 (made with 5.23.0, Jinja2 3.1.6; no PyTorch), which the tests themselves do not.
"""

import json
import lzma
from pathlib import Path

from conversations import CONVERSATIONS
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
TEMPLATES = {
    "demo": HERE.parent / "demo" / "chat_template.jinja",
    "json_calls": HERE / "json_calls.jinja",
    "corners": HERE / "corners.jinja",
}


def main() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(HERE.parent / "demo" / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    for name, path in TEMPLATES.items():
        rendered = {}
        for case, (messages, kwargs) in CONVERSATIONS.items():
            settings = {"add_generation_prompt": True, **kwargs, "chat_template": path.read_text(encoding="utf-8")}
            try:
                rendered[case] = {"text": tokenizer.apply_chat_template(messages, tokenize=False, **settings)}
            except Exception as error:
                rendered[case] = {"error": type(error).__name__, "message": str(error)}
        text = json.dumps(rendered, indent=1, ensure_ascii=True)
        (HERE / f"{name}.json.xz").write_bytes(lzma.compress((text + "\n").encode(), preset=9))


if __name__ == "__main__":
    main()
