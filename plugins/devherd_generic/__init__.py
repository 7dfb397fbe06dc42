"""The generic plugin: devices by path or glob."""
