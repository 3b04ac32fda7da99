"""A run asked."""
