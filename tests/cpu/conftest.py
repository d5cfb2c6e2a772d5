from checkout import load_benchmarks

load_benchmarks()
