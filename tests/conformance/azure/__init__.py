"""Judged by Azure's own clients."""
