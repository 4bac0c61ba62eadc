"""The trace: a real training step on fake tensors, every allocation recorded and replayed. Needs the extra `trace`."""
