"""Published rows of measured runs, as others wrote them -> rows of `bench/runs`. The package reads only the latter."""
