"""Many media of any sizes in one batch: the only folder that keeps caches, buffers and threads.

May import: everything but `reference`, `text`, `processor`, `integrations` and `cli`.
"""
