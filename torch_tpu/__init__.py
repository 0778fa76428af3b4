"""PyTorch's native backend for TPUs, in Python, over XLA."""
