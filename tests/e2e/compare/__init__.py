"""The same scripted scenarios on the simulated kubelet and on a real one, and what differs."""
