"""Model files: find one on disk or fetch it from the Hugging Face hub."""
