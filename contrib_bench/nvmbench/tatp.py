"""TATP through a crash: throughput and response time per 100 ms.

The seven transactions of the Telecom Application Transaction Processing
benchmark in their standard mix, by pgbench.  In the middle every process of
the server is SIGKILLed; it is started again at once, and the clients come
back as soon as it answers.  How much of the indexes is persistent (persistence
= full; the others have none) is what is compared, as in SOFORT's evaluation
(Oukid et al., CIDR 2015).
"""
import collections
import glob
import os
import time

from . import load, report
from .recovery import NO_CHECKPOINTS, split
from .server import Server
from .workloads import script

CLIENTS = 4
BUCKET = 0.1                # seconds
REACHED = 0.9               # of the throughput before is "reached again"
STEADY = 10                 # buckets whose mean has to reach it
BEFORE_PLOTTED = 5          # seconds

INDEXES = ("subscriber_pkey", "access_info_pkey", "special_facility_pkey",
           "call_forwarding_pkey", "subscriber_sub_nbr")
#: arm: the indexes with persistence = full.  Those that most transactions need come first.
ARMS = collections.OrderedDict((("0", INDEXES[:0]), ("40", INDEXES[:2]), ("100", INDEXES)))

SCHEMA = """
    CREATE TABLE subscriber (s_id int NOT NULL, sub_nbr varchar(15) NOT NULL, %s,
        msc_location int, vlr_location int);
    CREATE TABLE access_info (s_id int NOT NULL, ai_type smallint NOT NULL,
        data1 smallint, data2 smallint, data3 char(3), data4 char(5));
    CREATE TABLE special_facility (s_id int NOT NULL, sf_type smallint NOT NULL,
        is_active smallint NOT NULL, error_cntrl smallint, data_a smallint, data_b char(5));
    CREATE TABLE call_forwarding (s_id int NOT NULL, sf_type smallint NOT NULL,
        start_time smallint NOT NULL, end_time smallint, numberx varchar(15));
""" % ", ".join(["bit_%d smallint" % i for i in range(1, 11)] +
                ["hex_%d smallint" % i for i in range(1, 11)] +
                ["byte2_%d smallint" % i for i in range(1, 11)])

#: one to four access_info and special_facility rows a subscriber, none to three call_forwarding
#: rows a special_facility, as the specification wants
ROWS = (
    "INSERT INTO subscriber SELECT s, lpad(s::text, 15, '0'), %s,"
    " (random() * 2000000000)::int, (random() * 2000000000)::int"
    " FROM generate_series(1, {n}) s" % ", ".join(
        ["(random() * 1)::int"] * 10 + ["(random() * 15)::int"] * 10 +
        ["(random() * 255)::int"] * 10),
    "INSERT INTO access_info SELECT s, t, (random() * 255)::int, (random() * 255)::int, 'ABC', 'ABCDE'"
    " FROM generate_series(1, {n}) s, generate_series(1, 4) t WHERE t <= 1 + (hashint4(s) & 3)",
    "INSERT INTO special_facility SELECT s, t, (random() < 0.85)::int, (random() * 255)::int,"
    " (random() * 255)::int, 'ABCDE' FROM generate_series(1, {n}) s, generate_series(1, 4) t"
    " WHERE t <= 1 + (hashint4(s + 7) & 3)",
    "INSERT INTO call_forwarding SELECT s_id, sf_type, h * 8, h * 8 + 1 + (random() * 7)::int,"
    " lpad(s_id::text, 15, '0') FROM special_facility, generate_series(0, 2) h"
    " WHERE h < (hashint4(s_id + sf_type * 31) & 3)",
)
KEYS = """
    ALTER TABLE subscriber ADD CONSTRAINT subscriber_pkey PRIMARY KEY (s_id);
    ALTER TABLE access_info ADD CONSTRAINT access_info_pkey PRIMARY KEY (s_id, ai_type);
    ALTER TABLE special_facility ADD CONSTRAINT special_facility_pkey PRIMARY KEY (s_id, sf_type);
    ALTER TABLE call_forwarding ADD CONSTRAINT call_forwarding_pkey
        PRIMARY KEY (s_id, sf_type, start_time);
    CREATE UNIQUE INDEX subscriber_sub_nbr ON subscriber (sub_nbr);
    ALTER TABLE access_info ADD FOREIGN KEY (s_id) REFERENCES subscriber;
    ALTER TABLE special_facility ADD FOREIGN KEY (s_id) REFERENCES subscriber;
    ALTER TABLE call_forwarding ADD FOREIGN KEY (s_id, sf_type) REFERENCES special_facility;
"""

#: the specification's non-uniform choice of a subscriber
SUBSCRIBER = "\\set s_id 1 + ((random(0, :a) | random(1, :n)) % :n)\n"
BY_NUMBER = "SELECT s_id AS found FROM subscriber WHERE sub_nbr = lpad(:s_id::text, 15, '0') \\gset\n"
TRANSACTIONS = (
    ("get_subscriber_data", 35, SUBSCRIBER + "SELECT * FROM subscriber WHERE s_id = :s_id;\n"),
    ("get_new_destination", 10, SUBSCRIBER + """\\set sf_type random(1, 4)
\\set start_time 8 * random(0, 2)
\\set end_time random(1, 24)
SELECT cf.numberx FROM special_facility sf, call_forwarding cf
 WHERE sf.s_id = :s_id AND sf.sf_type = :sf_type AND sf.is_active = 1
 AND cf.s_id = sf.s_id AND cf.sf_type = sf.sf_type
 AND cf.start_time <= :start_time AND cf.end_time > :end_time;
"""),
    ("get_access_data", 35, SUBSCRIBER + """\\set ai_type random(1, 4)
SELECT data1, data2, data3, data4 FROM access_info WHERE s_id = :s_id AND ai_type = :ai_type;
"""),
    ("update_subscriber_data", 2, SUBSCRIBER + """\\set sf_type random(1, 4)
\\set bit random(0, 1)
\\set data_a random(0, 255)
BEGIN;
UPDATE subscriber SET bit_1 = :bit WHERE s_id = :s_id;
UPDATE special_facility SET data_a = :data_a WHERE s_id = :s_id AND sf_type = :sf_type;
COMMIT;
"""),
    ("update_location", 14, SUBSCRIBER + """\\set location random(1, 2000000000)
UPDATE subscriber SET vlr_location = :location WHERE sub_nbr = lpad(:s_id::text, 15, '0');
"""),
    ("insert_call_forwarding", 2, SUBSCRIBER + """\\set sf_type random(1, 4)
\\set start_time 8 * random(0, 2)
\\set end_time random(1, 24)
BEGIN;
""" + BY_NUMBER + """SELECT sf_type FROM special_facility WHERE s_id = :found;
INSERT INTO call_forwarding SELECT s_id, sf_type, :start_time, :end_time, lpad(:s_id::text, 15, '0')
 FROM special_facility WHERE s_id = :found AND sf_type = :sf_type ON CONFLICT DO NOTHING;
COMMIT;
"""),
    ("delete_call_forwarding", 2, SUBSCRIBER + """\\set sf_type random(1, 4)
\\set start_time 8 * random(0, 2)
BEGIN;
""" + BY_NUMBER + """DELETE FROM call_forwarding
 WHERE s_id = :found AND sf_type = :sf_type AND start_time = :start_time;
COMMIT;
"""),
)

DEFINITIONS = """\
Throughput before: mean of the seconds before the kill.  Recovery delta: from the kill to the first
100 ms from which on one second's mean throughput is at least 90 % of that.  Recovery area:
transactions that were not executed in that time, against the throughput before.  Highest mean
response time: of all 100 ms after the kill, the one whose transactions took longest on average,
counted where they end.  Server back: until it answers SELECT 1.
"""


def _scripts(server, subscribers):
    # the specification's A, for up to a million subscribers, or ten
    arguments = ["-D", "n=%d" % subscribers,
                 "-D", "a=%d" % (65535 if subscribers <= 1000000 else 1048575)]
    for name, weight, text in TRANSACTIONS:
        arguments += ["-f", "%s@%d" % (script(server, "tatp_" + name, text), weight)]
    return arguments


def _setup(server, subscribers):
    server.query(server.sql(SCHEMA))
    for statement in ROWS:
        server.query(statement.format(n=subscribers))
    server.query(KEYS)
    server.query("VACUUM ANALYZE")


def _read_logs(prefix):
    """(time of its end, seconds it took) of each transaction."""
    for path in glob.glob(prefix + ".*"):
        with open(path) as log:
            for line in log:
                fields = line.split()
                if len(fields) >= 6 and fields[2].isdigit():
                    yield int(fields[4]) + int(fields[5]) / 1e6, int(fields[2]) / 1e6


def _buckets(prefixes, origin, first, last):
    """[(transactions, mean response in ms or None)] of each 100 ms from first to last."""
    count = [0] * (last - first)
    took = [0.0] * (last - first)
    for prefix in prefixes:
        for end, seconds in _read_logs(prefix):
            bucket = int((end - origin) // BUCKET) - first
            if 0 <= bucket < last - first:
                count[bucket] += 1
                took[bucket] += seconds
    return [(n, 1000 * t / n if n else None) for n, t in zip(count, took)]


def _evaluate(buckets, first):
    """The figures of SOFORT's evaluation; see DEFINITIONS."""
    rates = [n / BUCKET for n, mean in buckets]
    before = sum(rates[:-first]) / -first
    after = rates[-first:]
    delta = None
    for i in range(len(after) - STEADY + 1):
        if (after[i] >= REACHED * before and
                sum(after[i:i + STEADY]) / STEADY >= REACHED * before):
            delta = i
            break
    until = delta if delta is not None else len(after)
    area = sum((before - rate) * BUCKET for rate in after[:until])
    means = [mean for n, mean in buckets[-first:] if mean is not None]
    earlier = [mean for n, mean in buckets[:-first] if mean is not None]
    return {"before_tps": before, "delta_s": None if delta is None else delta * BUCKET,
            "area": max(0.0, area), "highest_response_ms": max(means) if means else None,
            "highest_response_before_ms": max(earlier) if earlier else None,
            "after_tps": sum(after[-STEADY:]) / STEADY}


def _watch_rebuilds(server, until, killed):
    """Seconds after the kill at which each index was back, by its name."""
    back = {}
    with server.connect() as connection:
        while time.time() < until:
            rows = connection.query("SELECT index, state FROM nvm.index_rebuilds")
            for index, state in rows:
                if state == "ready":
                    back.setdefault(index, time.time() - killed)
            if len(back) == len(rows):
                break
            time.sleep(0.05)
    return back


def _arm(server, name, subscribers, options):
    """Load, kill, start, load."""
    before, after = (3, 6) if options.quick else (10, int(options.asked["seconds"] or 25))
    arguments = _scripts(server, subscribers)
    prefixes = [os.path.join(server.sandbox.work, "tatp_%s_%s" % (name, part))
                for part in ("before", "after")]
    run = load.PgbenchRun(server, arguments, CLIENTS, 600, log_prefix=prefixes[0])
    time.sleep(before + 3)              # three to warm up
    killed = time.time()
    server.kill()
    run.finish(may_fail=True)
    position = server.log_size()
    took = server.start()
    ready = time.time() - killed
    run = load.PgbenchRun(server, arguments, CLIENTS, after, log_prefix=prefixes[1])
    rebuilt = (_watch_rebuilds(server, killed + ready + after, killed)
               if server.kind == "nvm" else {})
    run.finish()
    first = -int(before / BUCKET)
    last = int(after / BUCKET)
    buckets = _buckets(prefixes, killed, first, last)
    result = _evaluate(buckets, first)
    result.update(buckets=buckets, first=first, ready_s=ready, start=split(
        server.log_since(position), took), rebuilt=rebuilt)
    for prefix in prefixes:
        for path in glob.glob(prefix + ".*"):
            os.unlink(path)
    print("  %s: %s per second before, delta %s s, area %s, highest response %s ms" % (
        name, report.number(result["before_tps"]), report.number(result["delta_s"]),
        report.number(result["area"]), report.number(result["highest_response_ms"])), flush=True)
    return result


def _nvm(sandbox, where, subscribers, options, settings):
    server = Server(sandbox, "nvm", "nvm", where,
                    dict(settings, **{"nvm.default_index_method": "nvm_btree",
                                      "nvm.index_identity": "nvm_btree"}))
    results = collections.OrderedDict()
    with server.running():
        _setup(server, subscribers)
        for arm, full in ARMS.items():
            for index in INDEXES:
                # a parameter of a constraint's index may be set when it has its storage
                server.query("ALTER INDEX %s SET (persistence = %s)"
                             % (index, "full" if index in full else "none"))
            server.query("CHECKPOINT")
            results[arm] = _arm(server, "nvm_" + arm, subscribers, options)
            for table in ("subscriber", "access_info", "special_facility", "call_forwarding"):
                problems = server.query("SELECT * FROM nvm.check('%s', heapallindexed => true)"
                                        % table)
                if problems:
                    raise AssertionError("%s: %s" % (table, problems[:3]))
    sandbox.empty(server.data)
    return results


def _heap(sandbox, where, subscribers, options, settings):
    server = Server(sandbox, "heap", "heap", where, settings)
    with server.running():
        _setup(server, subscribers)
        server.query("CHECKPOINT")
        result = _arm(server, "heap", subscribers, options)
    sandbox.empty(server.data)
    return result


def _label(arm):
    if arm == "heap":
        return "heap, btree"
    return "nvm, %s %% of indexes persistent" % arm


def _plot(directory, name, title, results):
    pyplot = report._pyplot()
    if pyplot is None:
        return False
    figure, all_axes = pyplot.subplots(len(results), 2, figsize=(10.5, 2.1 * len(results) + 1.3),
                                       sharex=True, squeeze=False)
    highest = max(n / BUCKET for r in results.values() for n, mean in r["buckets"])
    slowest = max(mean for r in results.values() for n, mean in r["buckets"] if mean)
    fastest = min(mean for r in results.values() for n, mean in r["buckets"] if mean)
    for (arm, result), (left, right) in zip(results.items(), all_axes):
        first = -int(BEFORE_PLOTTED / BUCKET)
        plotted = result["buckets"][max(0, first - result["first"]):]
        start = max(first, result["first"])
        xs = [(start + i + 0.5) * BUCKET for i in range(len(plotted))]
        rates = [n / BUCKET for n, mean in plotted]
        color = report.COLORS[0] if arm == "heap" else report.COLORS[1]
        left.plot(xs, rates, color=color, linewidth=1)
        delta = result["delta_s"]
        end = delta if delta is not None else xs[-1]
        inside = [(x, rate) for x, rate in zip(xs, rates) if 0 <= x <= end]
        left.fill_between([x for x, r in inside], [r for x, r in inside], result["before_tps"],
                          color=report.COLORS[2], alpha=0.25, linewidth=0)
        left.axhline(result["before_tps"], color="black", linewidth=0.6, linestyle=":")
        left.axvline(0, color="black", linewidth=0.8)
        left.set_ylim(0, highest * 1.1)
        left.set_ylabel("per second")
        left.set_title("%s: delta %s, area %s" % (
            _label(arm), "not reached" if delta is None else "%.1f s" % delta,
            report.number(result["area"])), fontsize=9, loc="left")
        for x in sorted(result["rebuilt"].values()):
            left.plot([x], [highest * 0.03], marker="^", color=report.COLORS[2], markersize=5,
                      clip_on=False)
        points = [(x, mean) for x, (n, mean) in zip(xs, plotted) if mean is not None]
        right.plot([x for x, m in points], [m for x, m in points], ".", color=color, markersize=2.5)
        right.axvline(0, color="black", linewidth=0.8)
        right.set_yscale("log")
        right.set_ylim(fastest / 2, slowest * 3)
        right.set_ylabel("ms")
        right.set_title("mean response time; highest after the kill %s ms"
                        % report.number(result["highest_response_ms"]), fontsize=9, loc="left")
    for axes in all_axes[-1]:
        axes.set_xlabel("seconds since the kill")
    figure.suptitle(title + "\nthroughput (left) and mean response time (right) per 100 ms; shaded: "
                    "recovery area; triangles: an index is back", fontsize=10)
    report._save_figure(pyplot, figure, directory, name)
    return True


def run(sandbox, where, options, name):
    subscribers = options.asked["rows"] or (20000 if options.quick else 500000)
    settings = dict(options.server_settings, **NO_CHECKPOINTS)
    # the same for all, and nothing but the load
    settings["autovacuum"] = "off"
    results = collections.OrderedDict()
    heap = _heap(sandbox, where, subscribers, options, settings)
    results.update(_nvm(sandbox, where, subscribers, options, settings))
    results["heap"] = heap
    number = report.number
    info = report.machine(sandbox)
    title = "TATP, %s subscribers, %d clients, killed and restarted" % (
        "{:,}".format(subscribers), CLIENTS)
    none = results["0"]
    rows = []
    for arm, result in results.items():
        rows.append([_label(arm), number(result["before_tps"]),
                     "%+.0f %%" % (100 * (result["before_tps"] / none["before_tps"] - 1)),
                     number(result["ready_s"]), number(result["start"]["own_ms"])
                     if arm != "heap" else "-",
                     "-" if result["delta_s"] is None else "%.1f" % result["delta_s"],
                     number(result["area"]),
                     "%+.1f %%" % (100 * (result["area"] / none["area"] - 1)) if none["area"] else "-",
                     number(result["highest_response_ms"]),
                     number(result["highest_response_before_ms"])])
    text = "%s, WAL on %s\n%s\n\n" % (title, options.wal, report.machine_line(info))
    text += report.table(["", "tps before", "to 0 %", "server back s", "own ms", "delta s",
                          "area", "to 0 %", "response ms", "before"], rows)
    text += "\n" + DEFINITIONS + "Persistent in the arms of 40 %% and 100 %%: %s; %s.\n" % (
        ", ".join(ARMS["40"]), "all five") + \
        "The others have persistence = none.  An unsuccessful INSERT or DELETE counts, as does every\n" \
        "transaction that finds no row; checkpoints by time or volume and autovacuum are off.\n"
    for arm, result in results.items():
        if result["rebuilt"]:
            text += "%s: back after %s\n" % (_label(arm), ", ".join(
                "%s %.1f s" % item for item in sorted(result["rebuilt"].items(),
                                                      key=lambda item: item[1])))
    print(text)
    data = {"title": title, "wal": options.wal, "machine": info, "subscribers": subscribers,
            "clients": CLIENTS, "results": results, "settings": settings,
            "definitions": DEFINITIONS, "persistent": {arm: list(i) for arm, i in ARMS.items()}}
    report.save_and_plot(sandbox, options, name, text, data, _plot, title, results)
    return data
