"""A model on several GPUs of one host. Import this package only where a GPU is present."""
