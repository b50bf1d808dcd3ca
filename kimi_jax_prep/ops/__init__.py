"""Pure JAX functions on arrays: resize, composite, normalize, patchify, pack.

May import: JAX, NumPy, `tables` and what `tables` may import. No PIL, no files, no state, no locks.
"""
