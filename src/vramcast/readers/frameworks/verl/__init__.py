"""verl: hydra overrides and trees, with the FSDP backend."""
