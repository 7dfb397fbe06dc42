"""GPU plugins: gpu-nvidia, gpu-amd and gpu-intel, one program each."""
