"""How quick the device is, as ratios to something measured beside it in the same run, so that a busy machine cancels out."""
