"""What is measured, one module each: measure(lab) says what is asked of which workers, work(bench)
is what a worker does, COLUMNS is its table, WEIGHT its share of the time."""

NAMES = ("training", "serving", "largest_batch", "growth", "save_load", "traces", "cuda_core")
