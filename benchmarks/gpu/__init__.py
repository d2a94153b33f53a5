"""The project beside hand-written loops and other frameworks on one NVIDIA GPU: `python -m benchmarks.gpu`."""
