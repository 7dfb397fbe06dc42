"""The race as a picture: for each cell, every trial's last resource known, and every first pod, on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from e2e.race_report import Result, rank

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 1000, 430, 20, 64, 34
_KNOWN, _POD, _GRID, _TEXT = "#1f77b4", "#d62728", "#dddddd", "#222222"


def plot(results: Sequence[Result]) -> str:
    """An SVG document. Dots are trials; the bars mark medians. A time is the kubelet's own, from its socket on."""
    trials = [trial for result in results for trial in result.trials]
    pods = [trial.first_pod for trial in trials if trial.first_pod < 500]
    last = max([*(trial.known for trial in trials), *pods, 1.0])
    step = next(one for one in (5, 10, 20, 25, 50, 100, 200, 500, 1000, 10_000) if last / one <= 12)
    end = (last // step + 1) * step
    scale = (_WIDTH - _LEFT - _RIGHT) / end
    height = _TOP + _ROW * len(results) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" fill="{_TEXT}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        '<text x="10" y="20" font-size="15">After kubelet.sock: all resources known (blue), first pod (red)</text>',
        f'<text x="10" y="38">One dot a trial, bars are medians; what comes after {end:g} ms is not shown</text>',
    ]
    for tick in range(0, int(end) + 1, int(step)):
        x = _LEFT + tick * scale
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{height - 24}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{tick}</text>')
    parts.append(f'<text x="{_LEFT - 8}" y="{height - 8}" text-anchor="end">milliseconds</text>')
    for index, result in enumerate(results):
        y = _TOP + _ROW * index + _ROW / 2
        lost = f"{result.lost} lost of {sum(trial.pods for trial in result.trials)}, n={len(result.trials)}"
        parts.append(f'<text x="10" y="{y - 2:.1f}">{escape(result.title)}</text>')
        parts.append(f'<text x="10" y="{y + 11:.1f}" font-size="10" fill="#666666">{escape(lost)}</text>')
        parts += _marks([trial.known for trial in result.trials], y - 6, scale, end, _KNOWN)
        parts += _marks([trial.first_pod for trial in result.trials], y + 6, scale, end, _POD)
    return "\n".join([*parts, "</svg>", ""])


def _marks(times: Sequence[float], y: float, scale: float, end: float, colour: str) -> list[str]:
    seen = [time for time in times if time <= end]
    dots = [
        f'<circle cx="{_LEFT + time * scale:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}" fill-opacity="0.4"/>'
        for time in seen
    ]
    middle = rank(sorted(times), 0.5)
    if middle > end:
        return dots
    x = _LEFT + middle * scale
    line = f'<line x1="{x:.1f}" y1="{y - 6:.1f}" x2="{x:.1f}" y2="{y + 6:.1f}" stroke="{colour}" stroke-width="2"/>'
    return [*dots, line]
