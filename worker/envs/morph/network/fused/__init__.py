"""The fused path: the training step of small convolutional hosts in Triton."""
