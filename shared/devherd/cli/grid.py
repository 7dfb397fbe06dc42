"""Tables as single lines for a view with few rows and columns: nothing is folded, what has no room is cut."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.text import Text

Row = Sequence[str | Text]
GAP = 2


def grid(
    heads: Sequence[str],
    rows: Sequence[Row],
    width: int,
    figures: Collection[str] = (),
    drop: Sequence[str] = (),
) -> list[Text]:
    """Head and rows, a line each, none wider than `width`.

    Columns named in `drop` are left out, in that order, for as long as the rest is too wide; after that the first
    column is cut, and then every line's end.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    kept = list(range(len(heads)))
    for name in drop:
        if _wide(heads, cells, kept) <= width:
            break
        if name in heads:
            kept.remove(heads.index(name))
    widths = [_column(heads, cells, i) for i in kept]
    over = sum(widths) + GAP * (len(widths) - 1) - width
    if over > 0 and widths:
        widths[0] = max(min(widths[0], 12), widths[0] - over)
    lines = [[Text(heads[i], style="bold") for i in kept], *([row[i] for i in kept] for row in cells)]
    right = [heads[i] in figures for i in kept]
    return [_line(line, widths, right, width) for line in lines]


def cut(lines: Sequence[Text], room: int, what: str = "more") -> list[Text]:
    """As many lines as there is room for; the last says how many are missing."""
    if len(lines) <= room:
        return list(lines)
    if room <= 0:
        return []
    return [*lines[: room - 1], Text(f"... and {len(lines) - room + 1} {what}", style="dim")]


def _wide(heads: Sequence[str], cells: Sequence[Sequence[Text]], kept: Sequence[int]) -> int:
    return sum(_column(heads, cells, i) for i in kept) + GAP * (len(kept) - 1)


def _column(heads: Sequence[str], cells: Sequence[Sequence[Text]], index: int) -> int:
    return max(cell_len(heads[index]), *(row[index].cell_len for row in cells)) if cells else cell_len(heads[index])


def _line(cells: Sequence[Text], widths: Sequence[int], right: Sequence[bool], width: int) -> Text:
    line = Text()
    for position, (cell, room, figure) in enumerate(zip(cells, widths, right, strict=True)):
        shown = Text(" ").join(cell.split("\n"))
        shown.truncate(room, overflow="ellipsis")
        blank = " " * (room - shown.cell_len)
        line.append_text(Text.assemble(blank, shown) if figure else Text.assemble(shown, blank))
        if position < len(cells) - 1:
            line.append(" " * GAP)
    line.rstrip()
    line.truncate(width, overflow="ellipsis")
    line.no_wrap = True
    return line
