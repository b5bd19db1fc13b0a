"""A `Report` in, a text out, in four forms; those for a file end in a newline, those to print do not."""
