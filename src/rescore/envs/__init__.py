"""The host boundary: Gymnasium tasks in, `[S, N]` arrays out. No JAX."""
