"""The probe: the only process that touches hardware, beside a front that must never wait for any.

It is a fresh exec with one descriptor, a socketpair to its front; it may hang, be killed and be replaced
without anybody else noticing. Nothing here imports grpc or asyncio.
"""
