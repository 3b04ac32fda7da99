"""AstrAI's HDF5 layout (up to 1.3.11), documents of several keys in one file: read, checked and written."""
