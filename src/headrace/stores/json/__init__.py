"""Records of tokens as JSON, one a line: read through an index of the lines, checked and written."""
