# SPDX-License-Identifier: Apache-2.0
"""Draws heads.svg: how data flows in a training step of a sampled, an exact and a factored head.

python docs/figures/draw_heads.py
"""

from __future__ import annotations

from pathlib import Path

WIDTH, HEIGHT, LEFT = 250, 44, 20
STEPS = {
    "SampledHead": (
        "h  [B, D]",
        "sampler: S candidates, labels",
        "gather K + S rows of W",
        "logits  [B, K + S]",
        "loss and gradients",
        "row optimizer: rows that were read",
    ),
    "ExactSoftmaxHead": (
        "h  [B, D]",
        "all C rows of W, block by block",
        "log Z, labels' logits, a selection",
        "no logits  [B, C]  in memory",
        "loss and gradients",
        "row optimizer: rows selected",
    ),
    "FactoredHead": (
        "h  [B, D]",
        "W = V U + 1 w,   Q = W'W",
        "h U,  h Q;  K rows of V",
        "label logits, sum, sum of squares",
        "loss and gradients",
        "U, w, Q  [D, D];  K rows of V",
    ),
}
COSTS = ("O(B (K + S) D)", "O(B C D)", "O(B D (D + K))")
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1b1b1b; text-anchor: middle }
  .title { font-weight: 600; font-size: 15px }
  rect { fill: #eef2fb; stroke: #3f51b5; rx: 6 }
  .update { fill: #fff3e0; stroke: #c25e00 }
  .paper { fill: #fff; stroke: none }
  path { stroke: #666; fill: none; marker-end: url(#tip) }
  marker path { fill: #666; stroke: none; marker-end: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e8e8e8 }
    rect { fill: #26304f; stroke: #8c9eff }
    .update { fill: #4a3416; stroke: #ffb74d }
    .paper { fill: #1e2129 }
    path { stroke: #aaa }
    marker path { fill: #aaa }
  }
"""


def drawing() -> str:
    """Returns the SVG: a column for each head, a box for each stage."""
    gap = HEIGHT + 24
    parts = []
    for column, (head, steps) in enumerate(STEPS.items()):
        left = LEFT + column * (WIDTH + LEFT)
        middle = left + WIDTH / 2
        parts.append(f'<text class="title" x="{middle}" y="24">{head}</text>')
        for row, step in enumerate(steps):
            top = 40 + row * gap
            kind = ' class="update"' if row == len(steps) - 1 else ""
            box = f'x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}"'
            parts.append(f"<rect{kind} {box}/>")
            parts.append(f'<text x="{middle}" y="{top + HEIGHT / 2 + 5}">{step}</text>')
            if row:
                parts.append(f'<path d="M{middle} {top - 24}V{top - 4}"/>')
        bottom = 40 + len(steps) * gap
        parts.append(f'<text x="{middle}" y="{bottom}">a step: {COSTS[column]}</text>')
    width, height = LEFT + len(STEPS) * (WIDTH + LEFT), 40 + len(STEPS["FactoredHead"]) * gap + 16
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="A training step of three heads">\n'
        f'<style>{STYLE}</style>\n<defs>{tip} orient="auto"><path d="M0 0L8 4L0 8z"/></marker>'
        f'</defs>\n<rect class="paper" width="{width}" height="{height}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    (Path(__file__).parent / "heads.svg").write_text(drawing())
