"""The kubelet's gRPC contracts as generated code; made from proto/ by proto/generate.py, never edited."""
