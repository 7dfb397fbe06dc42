"""The watcher: sees the kubelet come back and signals every front."""
