#!/usr/bin/env python3
"""Plot what a soak measured: plot.py DIRECTORY makes soak.png of samples.csv and settled.csv.

Copyright (c) 2026, pg_nvm contributors
"""
import csv
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read(path):
    with open(path) as f:
        return [{k: float(v) if v.replace(".", "", 1).isdigit() else v for k, v in row.items()} for row in csv.DictReader(f)]


def line(ax, rows, column, scale, label, style="-"):
    points = [(r["seconds"] / 60, r[column] / scale) for r in rows if isinstance(r.get(column), float)]
    if points:
        ax.plot(*zip(*points), style, label=label, linewidth=1, markersize=4)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.splitlines()[0])
    out = sys.argv[1]
    samples = read(os.path.join(out, "samples.csv"))
    settled = read(os.path.join(out, "settled.csv"))
    fig, axes = plt.subplots(4, 1, figsize=(11, 14), sharex=True)
    mb = 1 << 20

    ax = axes[0]
    line(ax, samples, "pool_size", mb, "pool's size")
    line(ax, samples, "pool_used", mb, "used")
    line(ax, settled, "pool_used", mb, "used, at rest", "o-")
    line(ax, settled, "live", mb, "live rows, at rest", "s-")
    line(ax, settled, "rest_relations", mb, "tables and indexes, at rest", "^:")
    line(ax, settled, "relations", mb, "the same when the server has started again", "^-")
    line(ax, settled, "unowned_kb", 1024, "relation files without a relation (PostgreSQL's)", "x-")
    ax.set_ylabel("MB")
    ax.set_title("Space")

    ax = axes[1]
    calm = [r for r in samples if str(r["phase"]).startswith("calm")]
    line(ax, calm, "backend_kb", 1024, "a backend, on an average, in calms", "o")
    line(ax, calm, "backend_max_kb", 1024, "the largest backend, in calms", "x")
    for name in ("postmaster", "keeper", "collector", "checkpointer"):
        line(ax, samples, name + "_kb", 1024, name)
    line(ax, samples, "shared_kb", 1024, "shared, of varying size")
    ax.set_ylabel("MB")
    ax.set_title("Memory of their own")

    ax = axes[2]
    for name in ("postmaster", "keeper", "collector"):
        line(ax, samples, name + "_fds", 1, name)
    line(ax, calm, "backend_max_fds", 1, "backend with the most, in calms", "x")
    line(ax, samples, "slots", 1, "commit slots in use")
    line(ax, samples, "gaps", 1, "gaps")
    line(ax, samples, "prepared", 1, "prepared transactions")
    ax.set_title("Open files, slots, gaps")

    ax = axes[3]
    line(ax, settled, "relation_files", 1, "relation files", "o-")
    line(ax, settled, "unowned_files", 1, "of these without a relation (PostgreSQL's)", "x-")
    line(ax, settled, "storages", 1, "storages in the pool", "s-")
    line(ax, samples, "wal_files", 1, "in pg_wal")
    line(ax, samples, "pool_files", 1, "in the pool's directory")
    line(ax, settled, "other_files", 1, "other files", "^-")
    ax.set_title("Files")
    ax.set_xlabel("minutes")

    for ax in axes:
        for r in samples:
            if r["phase"] == "no room":
                ax.axvspan(r["seconds"] / 60 - 0.04, r["seconds"] / 60 + 0.04, color="0.85", linewidth=0)
        ax.legend(fontsize=7, loc="upper left")
        ax.grid(alpha=0.3)
    fig.suptitle("Soak (grey: no room in the pool)")
    fig.tight_layout(rect=(0, 0, 1, 0.985))
    fig.savefig(os.path.join(out, "soak.png"), dpi=80)


if __name__ == "__main__":
    main()
