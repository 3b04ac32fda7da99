"""JSON lines of tokens, one record a line: read through an index of the lines, checked and written."""
