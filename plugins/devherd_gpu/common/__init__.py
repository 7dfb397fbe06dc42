"""What the GPU plugins share: selectors, sharing, names, labels."""
