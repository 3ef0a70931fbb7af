"""Process groups and the DeepSpeed engine that trains every model."""
