"""Ours and every peer side by side, in one process, on the same pictures: `python -m benchmarks`.

A case's result is compared with the reference, bit by bit, before any of its times counts. Needs the extra `bench`;
transformers' processor takes part where torchvision is installed. See docs/benchmarks.md for what came out.
"""
