"""A pretrained start: weights from a file, blocks that stay as they are, and how deep each parameter lies."""
