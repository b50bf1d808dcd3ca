"""Float64 tables, computed once on the host: the byte table, resize taps, blend tables and the order of passes.

May import: NumPy, and this package's `errors`, `config` and `plan`.
"""
