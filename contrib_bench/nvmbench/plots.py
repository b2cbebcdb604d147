"""Plots of the workloads with arms and cases of their own."""
import os

from . import report
from .report import median, number

ARM_COLORS = ["#9a9a9a", "#2b6cb0", "#c05621", "#2f855a", "#6b46c1"]


def _bars(axes, arms, cases, label_arms):
    """Medians as bars, runs as dots; of two arms the ratio above them."""
    width = 0.76 / len(arms)
    for arm, name in enumerate(arms):
        for position, (label, found) in enumerate(cases):
            values = [row[arm] for row in found]
            x = position + (arm - (len(arms) - 1) / 2) * width
            axes.bar(x, median(values), width=width * 0.95, color=ARM_COLORS[arm],
                     label=name if label_arms and position == 0 else None)
            axes.plot([x] * len(values), values, ".", color="black", markersize=3)
    if len(arms) == 2:
        for position, (label, found) in enumerate(cases):
            axes.annotate("%.2fx" % report.summarize_pairs(found)["ratio"],
                          (position, max(max(row) for row in found)), ha="center", va="bottom",
                          xytext=(0, 3), textcoords="offset points")
    axes.set_xticks(range(len(cases)))
    axes.set_xticklabels([label for label, found in cases])
    axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
    axes.grid(axis="x", visible=False)


def _compact(value, place=None):
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return "%g%s" % (value / size, letter)
    return "%g" % value


def bar_panels(directory, name, title, arms, rows):
    """A panel for each unit, in rows.

    rows: [[(unit, [(label, rounds)])]]; a case's label may have line breaks.
    """
    pyplot = report._pyplot()
    if pyplot is None:
        return False
    widest = max(sum(len(cases) for unit, cases in row) + 0.7 * len(row) for row in rows)
    figure = pyplot.figure(figsize=(max(4.8, widest * (0.3 + 0.35 * len(arms))),
                                    2.9 * len(rows) + 0.5))
    grid = figure.add_gridspec(len(rows), 1)
    first = True
    for row, place in zip(rows, grid):
        inner = place.subgridspec(1, len(row), width_ratios=[len(cases) for unit, cases in row])
        for (unit, cases), cell in zip(row, inner):
            axes = figure.add_subplot(cell)
            _bars(axes, arms, cases, first)
            axes.set_title(unit, fontsize=9)
            axes.yaxis.set_major_formatter(_compact)
            first = False
    figure.legend(frameon=False, loc="upper center", ncol=len(arms), bbox_to_anchor=(0.5, 0.02))
    figure.suptitle(title, fontsize=10)
    _save(pyplot, figure, directory, name)
    return True


def curves(directory, name, title, rows, doubling=False):
    """Medians as lines, runs as dots.

    rows of panels: [[(title, x label, y label, series)]], series: [(label, color
    number, line style, [(x, values)])]; doubling: a logarithmic x axis of base 2.
    """
    pyplot = report._pyplot()
    if pyplot is None:
        return False
    figure, all_axes = pyplot.subplots(len(rows), len(rows[0]), squeeze=False,
                                       figsize=(3.5 * len(rows[0]), 2.9 * len(rows) + 0.5))
    panels = [panel for row in rows for panel in row]
    for place, (axes, (heading, x_label, y_label, series)) in enumerate(
            zip(all_axes.flat, panels)):
        for label, color, style, points in series:
            axes.plot([x for x, values in points], [median(values) for x, values in points],
                      style, marker="o", markersize=4, color=ARM_COLORS[color],
                      label=label if place == 0 else None)
            for x, values in points:
                axes.plot([x] * len(values), values, ".", color=ARM_COLORS[color], markersize=2.5,
                          alpha=0.6)
        if doubling:
            axes.set_xscale("log", base=2)
        ticks = sorted({x for label, color, style, points in series for x, values in points})
        axes.set_xticks(ticks)
        axes.set_xticklabels([str(x) for x in ticks])
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
        axes.yaxis.set_major_formatter(_compact)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_title(heading, fontsize=9)
    figure.legend(frameon=False, loc="upper center", ncol=4, bbox_to_anchor=(0.5, 0.02))
    figure.suptitle(title, fontsize=10)
    _save(pyplot, figure, directory, name)
    return True


def stacks(directory, name, title, y_label, bars, parts):
    """bars: [(label, {part: value})], stacked in the order of parts, with their sums."""
    pyplot = report._pyplot()
    if pyplot is None:
        return False
    figure, axes = pyplot.subplots(figsize=(max(4.8, 1.1 * len(bars) + 2.2), 3.8))
    below = [0.0] * len(bars)
    colors = ["#2b6cb0", "#90b4d8", "#c05621", "#e5e5e5"]
    for part, color in zip(parts, colors):
        values = [found.get(part, 0) for label, found in bars]
        axes.bar(range(len(bars)), values, bottom=below, width=0.6, color=color, label=part)
        below = [bottom + value for bottom, value in zip(below, values)]
    for position, top in enumerate(below):
        axes.annotate(number(top), (position, top), ha="center", va="bottom",
                      xytext=(0, 2), textcoords="offset points")
    axes.set_xticks(range(len(bars)))
    axes.set_xticklabels([label for label, found in bars])
    axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(y_label)
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _save(pyplot, figure, directory, name)
    return True


def _save(pyplot, figure, directory, name):
    os.makedirs(directory, exist_ok=True)
    figure.tight_layout()
    for kind in ("svg", "png"):
        figure.savefig(os.path.join(directory, "%s.%s" % (name, kind)), dpi=150,
                       bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)
