"""One call of `KimiProcessor`, step by step: its arguments, its chat template, its media, its token ids.

May import what `processor` may.
"""
