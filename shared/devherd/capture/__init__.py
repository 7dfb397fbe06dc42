"""A node on file: its devices, what its plugins say, what happened; without what is nobody's business."""
