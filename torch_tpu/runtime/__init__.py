"""PJRT through jaxlib: the platform, its devices, arrays in and out, executables and their cache. Knows nothing of PyTorch ops."""
