"""Saved activations in the memory of the host: the copies over the link, and what autograd is given in their place."""
