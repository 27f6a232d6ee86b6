"""Model files: finding them on disk or downloading them from the Hugging Face hub."""
