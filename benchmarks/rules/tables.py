"""What was measured, as Markdown, and what it says of what was to be reached."""

from __future__ import annotations

from benchmarks.rules.measuring import BASE, LIMIT, Row

TARGETS = {  # CPU seconds over the read limit at n = 10, compiled and plain; None: no target
    "mean": (3.0, None),
    "median": (4.0, 9.0),
    "trimmed mean": (4.0, 9.0),
    "krum": (14.0, 14.0),
}
AT_50 = {"median": 8.0, "trimmed mean": 8.0}  # compiled
FASTER, MUCH_FASTER, EQUAL = 5.0, 20.0, 1e-5


def table(rows: list[Row]) -> str:
    """All rows but those of rules on the Gram matrix that no peer has."""
    lines = [
        "| | n | rule | CPU s | wall s | extra models | x read limit | times ours | results differ by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    matched = {row["rule"].partition(" | ")[0] for row in rows if not ours(row)}
    for r in rows:
        part = "" if r["share"] == 1 else f" (1/{r['share']} of it)"
        head = f"| {r['side']} | {r['n']} | {r['rule'].replace(' | ', ': ')}{part} "
        if "error" in r:
            lines.append(f"{head}| {r['error']} | | | | | |")
        elif not r.get("gram") or r["rule"] in matched:
            mine = None if ours(r) else partner(r, rows)
            faster = f"{r['cpu'] / mine['cpu']:.1f} x" if mine else ""
            gap = f"{r['difference']:.0e}" if "difference" in r else ""
            lines.append(
                f"{head}| {r['cpu']:.3f} | {r['wall']:.3f} | {r['extra_models']:.2f} | {r['ratio']:.1f} "
                f"| {faster} | {gap} |"
            )
    return "\n".join(lines)


def gram_table(rows: list[Row]) -> str:
    """Every rule on the Gram matrix over the Gram matrix and the mean, a column for each side and n."""
    found = [row for row in rows if row["rule"] == BASE or row.get("gram")]
    least = min((r["share"] for r in found), default=1)
    sides = list(dict.fromkeys((r["side"], r["n"], least) for r in found if "over_base" in r and r["share"] == least))
    names = list(dict.fromkeys(r["rule"].partition(" (")[0] for r in found))
    heads = [f"{side.removeprefix('pluribus ')} n={n}" for side, n, _ in sides]
    lines = [f"| rule | {' | '.join(heads)} |", "|---" * (len(sides) + 1) + "|"]
    for name in names:
        cells = []
        for side in sides:
            here = [r for r in found if (r["side"], r["n"], r["share"]) == side]
            row = next((r for r in here if r["rule"].partition(" (")[0] == name), None)
            cells.append("" if row is None else cell(row))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(row: Row) -> str:
    """Ratio of a rule, seconds of the base."""
    if "error" in row:
        return row["error"]
    label = row["rule"].partition(" (")[2].removesuffix(")")
    told = f"{row['over_base']:.2f}" if "over_base" in row else f"{row['cpu']:.3f} s"
    return f"{told} ({label})" if label else told


def verdicts(rows: list[Row]) -> list[str]:
    """What was to be reached, and whether it was."""
    told = []
    for row in (row for row in rows if "error" not in row and ours(row) and row["share"] == 1):
        compiled = "compiled" in row["side"]
        target = TARGETS.get(row["rule"], (None, None))[0 if compiled else 1] if row["n"] == 10 else None
        if row["n"] == 50 and compiled:
            target = AT_50.get(row["rule"])
        if target is not None:
            told.append(f"{who(row)}: {row['ratio']:.1f} x the read limit, {reached(row['ratio'] <= target)}{target:g}")
        if row["extra_models"] > 2:
            told.append(f"{who(row)}: NOT reached, {row['extra_models']:.1f} models extra")
    for row in (row for row in rows if "error" not in row and not ours(row)):
        mine = partner(row, rows)
        if mine is None:
            continue
        aim = MUCH_FASTER if mine["rule"] == "nnm + geometric median" else FASTER
        faster, gap = row["cpu"] / mine["cpu"], row.get("difference", 0.0)
        equal = "" if gap <= EQUAL else f", but results differ by {gap:.0e}"
        if mine.get("gram") or aim == MUCH_FASTER:
            verdict = reached(faster >= aim and not equal, ">=")
            told.append(f"{who(row)}: {faster:.1f} x the time of ours, {verdict}{aim:g}{equal}")
    over = [f"{who(row)} {row['over_base']:.2f}" for row in rows if row.get("over_base", 0.0) > LIMIT]
    count = sum("over_base" in row for row in rows)
    told.append(f"rules on the Gram matrix above {LIMIT} x the Gram matrix and the mean: {', '.join(over) or 'none'}")
    return [*told, f"({count} measured)"]


def who(row: Row) -> str:
    """Side, rule and n."""
    return f"{row['side']} {row['rule'].replace(' | ', ': ')} n={row['n']}"


def reached(yes: bool, sign: str = "<=") -> str:
    """Whether a target was reached."""
    return f"{'reached' if yes else 'NOT reached'} {sign} "


def ours(row: Row) -> bool:
    """Whether a row is ours."""
    return bool(row["side"].startswith("pluribus"))


def partner(row: Row, rows: list[Row]) -> Row | None:
    """Our compiled row of the same rule on the same numbers."""
    key = (row["n"], row["share"], row["rule"].partition(" | ")[0])
    return next(
        (
            r
            for r in rows
            if "cpu" in r and r["side"] == "pluribus (compiled)" and (r["n"], r["share"], r["rule"]) == key
        ),
        None,
    )
