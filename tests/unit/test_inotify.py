"""inotify without a library: the kernel's events, as the well-known wrapper reports them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import inotify_simple
import pytest
from devherd.inotify import INotify, flags, parse_events


def test_the_same_events_as_the_well_known_wrapper(tmp_path: Path) -> None:
    ours, theirs = INotify(nonblocking=True), inotify_simple.INotify(nonblocking=True)
    mask = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE_SELF | flags.ONLYDIR
    assert ours.add_watch(str(tmp_path), mask) == theirs.add_watch(str(tmp_path), int(mask))
    (tmp_path / "ä b").touch()
    (tmp_path / "ä b").rename(tmp_path / ("x" * 255))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").rmdir()
    (tmp_path / ("x" * 255)).unlink()
    tmp_path.rmdir()
    expected = [(e.wd, e.mask, e.name) for e in theirs.read(timeout=0)]
    assert [(e.wd, e.mask, e.name) for e in ours.read(timeout=0)] == expected
    assert len(expected) == 8
    assert expected[-1][1] & flags.IGNORED
    tmp_path.mkdir()
    theirs.close()
    ours.close()


def test_the_masks_are_the_kernels() -> None:
    for flag in flags:
        assert getattr(inotify_simple.flags, str(flag.name)) == flag


def test_waiting_ends_with_the_time_or_the_first_event(tmp_path: Path) -> None:
    inotify = INotify()
    wd = inotify.add_watch(str(tmp_path), flags.CREATE)
    began = time.monotonic()
    assert inotify.read(timeout=30) == []
    assert time.monotonic() - began >= 0.03
    (tmp_path / "a").touch()
    assert [event.name for event in inotify.read()] == ["a"]
    inotify.rm_watch(wd)
    (event,) = inotify.read(timeout=0)
    assert event.mask & flags.IGNORED
    inotify.close()
    inotify.close()
    assert inotify.fileno() == -1


def test_errors_are_the_systems(tmp_path: Path) -> None:
    inotify = INotify()
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError):
        inotify.add_watch(str(tmp_path / "missing"), flags.CREATE)
    with pytest.raises(NotADirectoryError):
        inotify.add_watch(str(tmp_path / "file"), flags.CREATE | flags.ONLYDIR)
    with pytest.raises(OSError, match="Invalid argument"):
        inotify.rm_watch(77)
    inotify.close()


def test_a_cut_event_is_not_invented() -> None:
    assert parse_events(b"\1\0\0\0\0\1\0\0") == []


def test_no_program_is_run_and_no_descriptor_inherited() -> None:
    code = """
import os, sys
sys.addaudithook(lambda event, args: print(event) if event in ("subprocess.Popen", "os.exec", "os.fork") else None)
from devherd.inotify import INotify
print(os.get_inheritable(INotify().fileno()), "subprocess" in sys.modules)
"""
    out = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False False\n"
