"""devherd: keeps a Kubernetes node's devices registered with the kubelet, from host processes."""

__version__ = "0.1.0"
