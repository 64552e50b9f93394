"""Benchmarks: the released method and this library's, in one process, on the same models and with the same results.

python -m benchmarks.speed --out results/benchmarks/speed.json      # CPU; 40 minutes on a quiet machine
python -m benchmarks.gpu --out results/benchmarks/gpu.json          # a GPU, or a small rehearsal on the CPU
python -m benchmarks.report                                         # the page of the book
"""
