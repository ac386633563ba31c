"""Files of draft models: GGUF in several dialects, and Hugging Face folders."""
