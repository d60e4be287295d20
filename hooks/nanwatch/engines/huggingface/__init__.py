"""Hugging Face Transformers: the only files that know it."""
