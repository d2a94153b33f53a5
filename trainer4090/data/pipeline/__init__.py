"""What the data sets are made of: files, splits, sources and the loader. Modules that import torch say so."""
