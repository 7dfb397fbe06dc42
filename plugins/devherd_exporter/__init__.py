"""Prometheus metrics of all devherd programs of a node. It asks their control sockets and touches nothing else."""
