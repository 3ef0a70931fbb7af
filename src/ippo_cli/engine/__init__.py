"""The machines: process group and the one DeepSpeed engine that trains everything."""
