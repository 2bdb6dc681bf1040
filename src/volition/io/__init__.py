"""Reading and writing: files, the one codec for all that is saved, models."""
