"""The benchmark matrix: suites, cells, runners, statistics and the report."""
