"""The command line: asks the running processes over their control sockets, and shows people what they say.

Nothing here touches hardware, a driver or a plugin's vendor. Results go to stdout (with `--json` exactly one
JSON document, or one a line for a command that follows), everything else to stderr.
"""
