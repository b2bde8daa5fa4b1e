"""Imported by the process that DataLoader workers are forked from."""

from .loader import serve_workers

serve_workers()
