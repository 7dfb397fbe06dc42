"""Measures the budgets that concern one plugin, on real processes, a simulated node and the simulated kubelet.

`make bench` prints one table; nothing here is a test, so a busy machine fails nothing.
"""
