"""What is written to disk, and how: atomic writes, JSON, the tables and the record of a run."""
