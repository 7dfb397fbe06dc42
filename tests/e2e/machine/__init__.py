"""A whole machine under qemu: Debian, systemd as PID 1, containerd 2, a real kubelet, devherd from its own unit."""
