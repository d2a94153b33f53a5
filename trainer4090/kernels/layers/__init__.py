"""Layers that compute with kernels of another kind than torch's own of the same name."""
