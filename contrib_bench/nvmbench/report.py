"""Results as text, JSON and plots."""
import json
import os
import platform
import statistics
import subprocess

COLORS = {0: "#9a9a9a", 1: "#2b6cb0", 2: "#c05621"}


def machine(sandbox):
    """What the figures depend on."""
    def first(path, key):
        try:
            with open(path) as lines:
                for line in lines:
                    if line.startswith(key):
                        return line.split(":", 1)[1].strip()
        except OSError:
            pass
        return "unknown"
    version = subprocess.run([sandbox.program("postgres"), "--version"],
                             capture_output=True, text=True).stdout.strip()
    return {"postgres": version, "cpu": first("/proc/cpuinfo", "model name"),
            "cpus": len(os.sched_getaffinity(0)), "memory": first("/proc/meminfo", "MemTotal"),
            "kernel": platform.release(), "sync_delay_us": sandbox.sync_delay}


def machine_line(info):
    line = "%s; %d x %s, %s; Linux %s" % (info["postgres"], info["cpus"], info["cpu"],
                                          info["memory"], info["kernel"])
    if info.get("sync_delay_us"):
        line += "; each sync lasts %s us longer" % number(info["sync_delay_us"])
    return line


def table(header, rows):
    """Aligned text; the first column to the left, the others to the right."""
    lines = [header] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = []
    for number, line in enumerate(lines):
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        text.append("  ".join(cells).rstrip())
        if number == 0:
            text.append("  ".join("-" * width for width in widths))
    return "\n".join(text) + "\n"


def number(value):
    """Three significant digits, without exponents."""
    if value is None or value != value:
        return "-"
    if abs(value) >= 100:
        return "{:,.0f}".format(value)
    if abs(value) >= 10:
        return "%.1f" % value
    if abs(value) >= 1:
        return "%.2f" % value
    return "%.3f" % value


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def summarize_pairs(pairs):
    """pairs: list of (a, b).  Medians of each, ratio b : a pair by pair."""
    ratios = [b / a for a, b in pairs if a]
    return {"a": median([a for a, b in pairs]), "b": median([b for a, b in pairs]),
            "ratio": median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}


def save(directory, name, text, data):
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, name + ".txt"), "w") as out:
        out.write(text)
    with open(os.path.join(directory, name + ".json"), "w") as out:
        json.dump(data, out, indent=1, sort_keys=True)
        out.write("\n")


def _pyplot():
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot
    pyplot.rcParams.update({
        "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
        "axes.axisbelow": True, "axes.grid": True, "grid.color": "#e5e5e5",
        "svg.hashsalt": "pg_nvm"})
    return pyplot


PLOTS_SKIPPED = "no plots: install python3-matplotlib to have them\n"


def result_name(name, options):
    """Of a workload's result files, without what comes behind the dot."""
    delay = "_sync%d" % options.sync_delay if options.sync_delay else ""
    return "%s_%s%s" % (name, options.wal, delay)


def save_and_plot(sandbox, options, name, text, data, plot, *args):
    """Of a workload that draws its own picture: plot(directory, file name, *args)."""
    directory = os.path.join(sandbox.out, name)
    file_name = result_name(name, options)
    save(directory, file_name, text, data)
    if not plot(directory, file_name, *args):
        print(PLOTS_SKIPPED)


def _save_figure(pyplot, figure, directory, name):
    os.makedirs(directory, exist_ok=True)
    figure.tight_layout()
    for kind in ("svg", "png"):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(os.path.join(directory, "%s.%s" % (name, kind)), dpi=150,
                       metadata=metadata)
    pyplot.close(figure)


def plot_pairs(directory, name, title, unit, arms, cases, subtitle=""):
    """Bars of medians with each run as a dot.  cases: [(label, pairs)]."""
    pyplot = _pyplot()
    if pyplot is None:
        return False
    figure, axes = pyplot.subplots(figsize=(max(4.8, 1.5 * len(cases) + 1.5), 3.6))
    for arm in (0, 1):
        for position, (label, pairs) in enumerate(cases):
            values = [pair[arm] for pair in pairs]
            x = position + (arm - 0.5) * 0.38
            axes.bar(x, median(values), width=0.36, color=COLORS[arm],
                     label=arms[arm] if position == 0 else None)
            axes.plot([x] * len(values), values, ".", color="black", markersize=3)
    for position, (label, pairs) in enumerate(cases):
        top = max(max(pair) for pair in pairs)
        axes.annotate("%.2fx" % summarize_pairs(pairs)["ratio"], (position, top),
                      ha="center", va="bottom", xytext=(0, 3), textcoords="offset points")
    axes.set_xticks(range(len(cases)))
    axes.set_xticklabels([label for label, pairs in cases])
    axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(unit)
    axes.set_title(title + ("\n" + subtitle if subtitle else ""), fontsize=10)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _save_figure(pyplot, figure, directory, name)
    return True


def plot_lines(directory, name, title, x_label, y_label, series):
    """Log-log lines.  series: [(label, color number, dashes, [(x, y)])]."""
    pyplot = _pyplot()
    if pyplot is None:
        return False
    figure, axes = pyplot.subplots(figsize=(6.4, 3.8))
    for label, color, style, points in series:
        axes.plot([x for x, y in points], [y for x, y in points], style, marker="o",
                  markersize=4, color=COLORS[color], label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _save_figure(pyplot, figure, directory, name)
    return True


def plot_panels(directory, name, title, arms, panels, columns=3):
    """A panel for each figure.  panels: [(label, [value of each arm], "more" or "less" is better)]."""
    pyplot = _pyplot()
    if pyplot is None:
        return False
    rows = -(-len(panels) // columns)
    figure, all_axes = pyplot.subplots(rows, columns, squeeze=False,
                                       figsize=((0.75 + 0.7 * len(arms)) * columns, 0.3 + 2.7 * rows))
    for axes, (label, values, better) in zip(all_axes.flat, panels):
        bars = axes.bar(range(len(arms)), values, tick_label=arms, color=[COLORS[i] for i in range(len(arms))], width=0.6)
        for bar, value in zip(bars, values):
            axes.annotate(number(value), (bar.get_x() + bar.get_width() / 2, value),
                          ha="center", va="bottom")
        axes.set_ylim(0, max(values) * 1.15 or 1)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_title(label, fontsize=9)
        axes.set_xlabel(better + " is better", fontsize=8)
        axes.grid(False)
    figure.suptitle(title, fontsize=10)
    _save_figure(pyplot, figure, directory, name)
    return True
