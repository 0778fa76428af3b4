"""Two real programs on the device ``tpu``: sentence embeddings with published weights, and a small GPT trained from scratch."""
