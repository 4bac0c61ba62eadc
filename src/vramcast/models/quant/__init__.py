"""Quantised weights: how a method packs a matrix (`formats`), which tensors it packs (`quantisation`), who says so."""
