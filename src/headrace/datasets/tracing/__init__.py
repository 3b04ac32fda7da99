"""Tracing: what a step of a run was fed, and when a sample comes."""
