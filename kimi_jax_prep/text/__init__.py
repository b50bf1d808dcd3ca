"""Placeholders, chat messages and rows of token ids around the media.

May import: the standard library and this package's `errors` and `checks`.
"""
