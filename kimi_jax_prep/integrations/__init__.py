"""Adapters, one file for each framework.

May import: the framework, and all of this package but `cli`. Nothing here is imported unless you import it.
"""
