"""Load models from files, folders or the Hugging Face Hub, and see first if they fit."""
