"""The parts, one module each: measure(lab) sends requests to workers, work(bench) runs in a worker,
COLUMNS are the columns of its table, WEIGHT is its share of the time."""

NAMES = ("training", "serving", "largest_batch", "growth", "save_load", "traces", "cuda_core")
