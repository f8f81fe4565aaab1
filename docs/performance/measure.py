#!/usr/bin/env python3
"""Measures changefeed on PostgreSQL against the bare database, and the peers that are installed, in one run.

    docs/performance/measure.py --program target/release/changefeed            # prints the table, about 3 minutes
    docs/performance/measure.py --program … --peers --write                    # also docs/performance.md and its plots
    docs/performance/measure.py --program … --compare                          # fails when a ratio fell by a fifth

A fresh cluster is made for each peer, on loopback, and removed afterwards. Rates are medians, given as
ratios to what the same clients do to the bare database in the same run, because machines differ and neighbours disturb.
Needs psycopg, pgbench and the server's programs; the peers PgQ (postgresql-NN-pgq3) and pgmq (PyPI) are
measured where they are installed, and said to be missing elsewhere.
"""
import argparse, contextlib, http.server, json, os, platform, re, shutil, socket, statistics, subprocess, sys, tempfile, threading, time
from pathlib import Path

import psycopg

HERE = Path(__file__).resolve().parent
CLIENTS, RATE = 8, 100
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "synchronous_commit": "on", "fsync": "on"}
NOTE = "n" * 100
ORDERS = ("create table {} (id bigserial primary key, customer_id int not null, status text not null, "
          "amount numeric(12,2) not null, note text, updated_at timestamptz not null default now())")
ONE = "insert into {}(customer_id, status, amount, note) values (:c, 'new', 12.34, '" + NOTE + "')"
BULK = "insert into {}(customer_id, status, amount, note) select g, 'new', 12.34, '" + NOTE + "' from generate_series(1, {}) g"
PUBLISH = ("with r as (insert into published(customer_id, status, amount, note) values (:c, 'new', 12.34, '" + NOTE
           + "') returning change_id) insert into changefeed.change(feed_id, shard, change_id) select 37, 0, change_id from r")
# What a fall of more than a fifth in is a failure of `./test --bench`; the others are too noisy, or not ours.
GUARDED = ["publish", "publish while swept", "captured insert, key", "captured insert, images", "event of an insert",
           "captured bulk insert", "order and read a backlog"]


def programs():
    found = os.environ.get("CHANGEFEED_TEST_POSTGRES_BIN") or subprocess.check_output(["pg_config", "--bindir"], text=True).strip()
    return Path(found)


def as_server():
    return {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}


@contextlib.contextmanager
def cluster():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = Path(tempfile.mkdtemp(prefix="changefeed-measure-"))
    if as_server():
        shutil.chown(root, "postgres", "postgres")

    def run(*words):
        subprocess.run([programs() / words[0], *map(str, words[1:])], check=True, cwd=root, stdout=subprocess.DEVNULL, **as_server())
    try:
        run("initdb", "-D", root / "data", "-A", "trust", "-U", "bench")
        with open(root / "data" / "postgresql.conf", "a") as file:
            for name, value in {**SETTINGS, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": port}.items():
                file.write(f"{name} = '{value}'\n")
        run("pg_ctl", "-D", root / "data", "-l", root / "log", "-w", "start")
        try:
            yield f"postgres://bench@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", root / "data", "-m", "fast", "-w", "stop")
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def running(*words):
    child = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(20)


class Run:
    def __init__(self, program, seconds, rounds, rows):
        self.program, self.seconds, self.rounds, self.rows = program, seconds, rounds, rows
        self.rates, self.latencies = {}, {}

    def changefeed(self, url, *words):
        return subprocess.run([self.program, "--db", url, *words], check=True, capture_output=True, text=True).stdout

    def pgbench(self, url, statement):
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
            script.write(f"\\set c random(1, 100000)\n{statement};\n")
            script.flush()
            out = subprocess.run([programs() / "pgbench", "-n", "-M", "prepared", "-c", str(CLIENTS), "-j", "2", "-T",
                                  str(self.seconds), "-f", script.name, url], check=True, capture_output=True, text=True).stdout
        return float(re.search(r"tps = ([\d.]+)", out)[1])

    def keep(self, name, rate):
        self.rates.setdefault(name, []).append(rate)
        print(f"{name}: {rate:,.0f}", file=sys.stderr, flush=True)

    def timed(self, connection, statement, amount):
        began = time.monotonic()
        connection.execute(statement)
        return amount / (time.monotonic() - began)


def ours(run):
    with cluster() as url, psycopg.connect(url, autocommit=True) as db:
        run.changefeed(url, "migrate")
        for table in ["orders", "published", "keyed", "imaged", "hooked"]:
            db.execute(ORDERS.format(table))
        db.execute("alter table published add change_id bigint not null default nextval('changefeed.change_id')")
        db.execute("create index on published (change_id)")
        run.changefeed(url, "feed", "create", "published", "--id", "37", "--rows", "published")
        run.changefeed(url, "feed", "create", "keyed", "--from", "keyed")
        run.changefeed(url, "feed", "create", "imaged", "--from", "imaged", "--images")
        run.changefeed(url, "trigger", "create", "hook", "--table", "hooked", "--insert", "--webhook", "http://127.0.0.1:9/")
        # Turn by turn, so that whatever disturbs the machine disturbs all alike.
        for _ in range(run.rounds):
            run.keep("bare insert", run.pgbench(url, ONE.format("orders")))
            run.keep("publish", run.pgbench(url, PUBLISH))
            run.keep("captured insert, key", run.pgbench(url, ONE.format("keyed")))
            run.keep("captured insert, images", run.pgbench(url, ONE.format("imaged")))
            run.keep("event of an insert", run.pgbench(url, ONE.format("hooked")))
            with running(run.program, "--db", url, "sweep"):
                time.sleep(1)
                run.keep("publish while swept", run.pgbench(url, PUBLISH))
        run.changefeed(url, "trigger", "drop", "hook", "--yes")
        db.execute("drop table hooked")
        for _ in range(run.rounds):
            db.execute("truncate orders")
            run.keep("bare bulk insert", run.timed(db, BULK.format("orders", run.rows), run.rows))
            db.execute("truncate keyed")
            run.keep("captured bulk insert", run.timed(db, BULK.format("keyed", run.rows), run.rows))
            backlog(run, url, db)
    with cluster() as url, psycopg.connect(url, autocommit=True) as db:
        run.changefeed(url, "migrate")
        db.execute(ORDERS.format("orders"))
        run.changefeed(url, "feed", "create", "followed", "--from", "orders")
        for _ in range(run.rounds):
            follower(run, url)
        run.changefeed(url, "feed", "drop", "followed", "--yes")
        with receiver() as (address, got):
            run.changefeed(url, "trigger", "create", "hook", "--table", "orders", "--insert", "--webhook", address)
            with running(run.program, "--db", url, "serve", "--listen", "127.0.0.1:0"):
                time.sleep(2)
                for _ in range(run.rounds):
                    got.clear()
                    sent = produce(url)
                    wait_for(lambda: all(n in got for n in sent))
                    run.latencies.setdefault("commit to webhook", []).append([got[n] - at for n, at in sent.items()])


def backlog(run, url, db):
    """Changes without numbers: sweep them and read them to the end."""
    db.execute("truncate published")
    while run.changefeed(url, "--json", "sweep", "--once") and db.execute("select exists (select from changefeed.pending)").fetchone()[0]:
        pass
    last = db.execute("select last_change_sequence_number from changefeed.shard where feed_id = 37").fetchone()[0]
    db.execute("with r as (" + BULK.format("published", run.rows) + " returning change_id) insert into changefeed.change"
               "(feed_id, shard, change_id) select 37, 0, change_id from r")
    db.execute("analyze published")
    seen, began = 0, time.monotonic()
    with running(run.program, "--db", url, "sweep"):
        while seen < run.rows:
            got = db.execute("select c.change_sequence_number, p.* from changefeed.change c join published p using (change_id) "
                             "where c.feed_id = 37 and c.shard = 0 and c.change_sequence_number > %s "
                             "order by c.change_sequence_number limit 1000", (last,), prepare=True, binary=True).fetchall()
            if got:
                last, seen = got[-1][0], seen + len(got)
            else:
                time.sleep(0.002)
        run.keep("order and read a backlog", run.rows / (time.monotonic() - began))


def produce(url, count=300):
    """One transaction per change, at 100 a second: when each was acknowledged, in milliseconds."""
    sent = {}
    with psycopg.connect(url, autocommit=True) as db:
        start = time.monotonic() + 0.05
        for n in range(count):
            time.sleep(max(0, start + n / RATE - time.monotonic()))
            db.execute("insert into orders(customer_id, status, amount, note) values (%s, 'new', 12.34, 'x')", (n,), prepare=True)
            sent[n] = time.monotonic() * 1000
    return sent


def wait_for(done):
    deadline = time.monotonic() + 30
    while not done():
        if time.monotonic() > deadline:
            sys.exit("something did not arrive within 30 seconds")
        time.sleep(0.01)


def follower(run, url):
    """A follower in another process, which prints what it reads."""
    got = {}
    with running(run.program, "--db", url, "sweep"), running(run.program, "--db", url, "--json", "feed", "tail", "followed") as tail:
        def read():
            for line in tail.stdout:
                row = json.loads(line).get("row")
                if row:
                    got[row["customer_id"]] = time.monotonic() * 1000
        threading.Thread(target=read, daemon=True).start()
        time.sleep(2)
        sent = produce(url)
        wait_for(lambda: all(n in got for n in sent))
    run.latencies.setdefault("commit to follower", []).append([got[n] - at for n, at in sent.items()])


@contextlib.contextmanager
def receiver():
    got = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            at = time.monotonic() * 1000
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            got[body["event"]["data"]["new"]["customer_id"]] = at
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", got
    finally:
        server.shutdown()


def pgq(run):
    with cluster() as url, psycopg.connect(url, autocommit=True) as db:
        db.execute("create extension pgq")
        db.execute(ORDERS.format("orders"))
        db.execute(ORDERS.format("captured"))
        db.execute("select pgq.create_queue('q')")
        db.execute("create trigger t after insert on captured for each row execute function pgq.jsontriga('q')")
        for _ in range(run.rounds):
            run.keep("PgQ: bare insert", run.pgbench(url, ONE.format("orders")))
            run.keep("PgQ: insert_event", run.pgbench(url, f"select pgq.insert_event('q', 'order', '{json.dumps({'id': 1, 'note': NOTE})}')"))
            run.keep("PgQ: captured insert", run.pgbench(url, ONE.format("captured")))


def ratios(run):
    median = {name: statistics.median(rates) for name, rates in run.rates.items()}
    against = {"order and read a backlog": "bare bulk insert", "captured bulk insert": "bare bulk insert"}
    found = {}
    for name, rate in median.items():
        if "bare" in name:
            continue
        bare = "PgQ: bare insert" if name.startswith("PgQ") else against.get(name, "bare insert")
        # Each turn with the bare one of that turn.
        found[name] = round(statistics.median(a / b for a, b in zip(run.rates[name], run.rates[bare])), 3)
    return median, found


def percentiles(run):
    found = {}
    for name, runs in run.latencies.items():
        at = lambda p: statistics.median(sorted(r)[int(len(r) * p)] for r in runs)
        found[name] = {"p50": round(at(0.5), 1), "p99": round(at(0.99), 1)}
    return found


def bars(title, values, unit):
    """A plot as SVG: one bar for each value."""
    width, line = 640, 26
    most = max(values.values())
    rows = [f'<text x="8" y="20" class="t">{title}</text>']
    for n, (name, value) in enumerate(values.items()):
        y = 34 + n * line
        colour = "#888" if name.startswith("PgQ") else "#2b6cb0"
        rows.append(f'<text x="220" y="{y + 14}" text-anchor="end">{name}</text><rect x="228" y="{y}" height="18" '
                    f'width="{max(1, value / most * 330):.0f}" fill="{colour}"/>'
                    f'<text x="{236 + value / most * 330:.0f}" y="{y + 14}">{value:g}{unit}</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{44 + len(values) * line}" font-family="sans-serif" '
            f'font-size="12"><style>.t{{font-weight:bold;font-size:14px}}</style><rect width="100%" height="100%" fill="#fff"/>'
            + "".join(rows) + "</svg>\n")


def machine(run):
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {"processors": f"{os.cpu_count()} × {model[1] if model else platform.machine()}",
            "PostgreSQL": subprocess.check_output([programs() / "postgres", "--version"], text=True).split()[2],
            "changefeed": subprocess.check_output([run.program, "--version"], text=True).split()[1],
            "settings": ", ".join(f"{k} = {v}" for k, v in SETTINGS.items()),
            "clients": CLIENTS, "seconds": run.seconds, "rounds": run.rounds, "bulk rows": run.rows}


def markdown(result):
    lines = ["| measure | per second | of the bare database |", "|---|---|---|"]
    for name, rate in result["rates"].items():
        ratio = result["ratios"].get(name)
        lines.append(f"| {name} | {rate:,.0f} | {'' if ratio is None else f'{ratio:.2f}'} |")
    lines += ["", f"| at {RATE} changes a second | p50, ms | p99, ms |", "|---|---|---|"]
    lines += [f"| {name} | {p['p50']} | {p['p99']} |" for name, p in result["latencies"].items()]
    lines += ["", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in result["machine"].items())]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="a release build of changefeed")
    parser.add_argument("--seconds", type=int, default=4, help="length of each timed run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (%(default)s)")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of a bulk insert and of the backlog (%(default)s)")
    parser.add_argument("--peers", action="store_true", help="also the peers that are installed")
    parser.add_argument("--write", action="store_true", help="write results.json, the plots and the tables of docs/performance.md")
    parser.add_argument("--compare", action="store_true", help="fail when a ratio is more than a fifth below results.json")
    args = parser.parse_args()
    run = Run(args.program, args.seconds, args.rounds, args.rows)
    ours(run)
    if args.peers:
        try:
            pgq(run)
        except psycopg.Error as error:
            print(f"PgQ is not measured: {error}", file=sys.stderr)
    rates, found = ratios(run)
    result = {"machine": machine(run), "rates": {n: round(r, 1) for n, r in rates.items()}, "ratios": found, "latencies": percentiles(run)}
    print(markdown(result))
    if args.write:
        (HERE / "results.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        (HERE / "throughput.svg").write_text(bars("Of the same statements on the bare database", found, ""))
        (HERE / "latency.svg").write_text(bars("Latency in milliseconds", {
            f"{name} {p}": value for name, both in result["latencies"].items() for p, value in both.items()}, ""))
        page = HERE.parent / "performance.md"
        text = page.read_text()
        before, rest = text.split("<!-- measured -->\n")[0], text.split("<!-- /measured -->\n")[1]
        plots = "\n![Throughput against the bare database](performance/throughput.svg)\n\n![Latency](performance/latency.svg)\n"
        page.write_text(f"{before}<!-- measured -->\n{markdown(result)}{plots}<!-- /measured -->\n{rest}")
    if args.compare:
        if not (HERE / "results.json").exists():
            sys.exit("there is no docs/performance/results.json to compare with: make it with --write, on a quiet machine")
        known = json.loads((HERE / "results.json").read_text())["ratios"]
        fallen = [f"{name}: {found[name]:.2f}, was {known[name]:.2f}" for name in GUARDED if found[name] < known[name] * 0.8]
        if fallen:
            sys.exit("these fell by more than a fifth:\n  " + "\n  ".join(fallen))


if __name__ == "__main__":
    main()
