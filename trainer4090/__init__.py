"""trainer4090: declarative, config-driven training for one or two RTX 4090s."""

__version__ = "0.1.0"
