"""Published methods that benchmarks compare with; they do not ship."""
