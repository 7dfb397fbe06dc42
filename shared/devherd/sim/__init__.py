"""A kubelet that behaves like the real one, mistakes of plugins included, and a node to go with it. Needs no root."""
