"""Networks, free of configuration: plain `nn.Module`s with plain arguments."""
