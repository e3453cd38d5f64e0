"""One script a claim. Each writes JSON, with versions and hardware, and a table made from it."""
