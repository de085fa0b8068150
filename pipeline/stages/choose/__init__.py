"""Choices on held-out rows: kernel, width and scales; the number of candidates; a selection of centers."""
