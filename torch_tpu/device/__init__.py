"""``torch.tpu``: devices, streams, memory, random numbers and modes, as PyTorch's own accelerator modules have them."""
