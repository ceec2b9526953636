"""The parts of `make demo`: processes, the stack they form, the story that it plays, and the report."""
