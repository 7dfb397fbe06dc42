"""The generic plugin: anything with a device node, offered by rules of paths, globs or regular expressions."""
