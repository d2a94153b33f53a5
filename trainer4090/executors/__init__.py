"""Executors: an object that runs one update."""
