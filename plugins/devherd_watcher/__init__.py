"""The watcher: sees the kubelet's socket come back and signals every front at once.

It is a supervisord event listener, one poll loop, no threads. What it must never be is late or heavy: pids are
known before they are needed, nothing is asked on the way from the inotify event to the signals.
"""
