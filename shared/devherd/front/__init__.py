"""The front: the process that speaks to the kubelet.

One asyncio loop that opens no device, no driver library and no vendor file: it answers from memory, so that
whatever hangs in a driver hangs in the probe and never in an Allocate.
"""
