"""Iterators over batches: packs of one shape, and the next items prepared on another thread.

May import: everything that `engine` may import, and `engine`.
"""
