"""What a model keeps between decoding steps, by kind of layer: keys and values, latents, windows, states.

`kinds.py` says what is kept, `sizes.py` how many bytes that is, `hf.py`, `vllm.py` and `sglang.py` who allocates how.
"""
