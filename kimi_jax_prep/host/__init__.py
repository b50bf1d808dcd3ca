"""NumPy and Pillow rendering: the same bits as `ops` without JAX.

May import: NumPy, PIL, `tables` and what `tables` may import. Never `reference`, which it is tested against.
"""
