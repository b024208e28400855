# SPDX-License-Identifier: MIT
"""The report of the bench in emulated machines, of one run and of several; no machine runs.

The figures are made up, so that the expected table is known.
"""
import importlib.machinery
import importlib.util
import pathlib
import sys

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench/vm"


def of_bench(name):
    """Loads a program or module of bench/vm; others of the same names are on the path."""
    before = sys.path[:], set(sys.modules)
    sys.path.insert(0, str(BENCH))
    try:
        loader = importlib.machinery.SourceFileLoader(f"bench_vm_{name}", str(BENCH / name))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(module)
        return module
    finally:
        sys.path[:] = before[0]
        for new in ("machine", "plot", "report"):
            if new not in before[1]:
                sys.modules.pop(new, None)


report = of_bench("report.py")
GOODPUT = "page-fetch goodput / raw UD"
READAHEAD = "128 KiB readahead, median / (32 raw datagrams + a round trip)"
READAHEAD_P5 = "128 KiB readahead, p5 / (32 raw datagrams + a round trip)"
RANDOM_9P = "from a peer / 9p, random 4k"
SHARE = "second reader's share from storage"
COPIED = "page bytes copied on the receive path"

# 128 KiB at 65.536 MB/s take 2000 us, plus a round trip of 500.
RAW, TRIP, IDEAL = 65.536, 500, 2500
STATS = """coopfs-stats 1
source buffer requests 1 pages 10 bytes 400
source peer requests 1 pages 10 bytes 1400
source storage requests 1 pages 10 bytes 200
latency buffer 0 0
traffic storage rx_bytes 9999 tx_bytes 1
read copied_bytes 0
storage rx_data_bytes 10
storage calls 5
"""
TERSE = ("3;fio-3.33;x;0;0;4096;512000;4000;8;0;0;0.000000;0.000000;127;2155;221.243813;357.776064;1.000000%=120;"
         "5.000000%=127;10.000000%=128;20.000000%=130;30.000000%=132;40.000000%=134;50.000000%=138;60.000000%=142;"
         "70.000000%=166;80.000000%=179;90.000000%=203;95.000000%=448;99.000000%=2146;99.500000%=2147;99.900000%=2148;"
         "99.950000%=2149;99.990000%=2150;0%=0;0%=0;0%=0;127;2155;221.298281;357.784189;0;0;0.000000%;0.0;0.0")


def figure(system, case, mb_s, state="cold", **latency):
    return {"system": system, "case": case, "state": state, "bytes": 1 << 20, "ms": 1000, "mb_s": mb_s,
            "latency_us": latency}


def stats(storage_received=10, copied=0):
    out = {f"source {k}": {"requests": 1, "pages": 1, "bytes": b}
           for k, b in (("buffer", 400), ("peer", 1400), ("storage", 200))}
    return {**out, "read copied_bytes": copied, "storage rx_data_bytes": storage_received}


def run(peer=60.0, raw=RAW, nine_p=4.0, p50=3000, p5=2750, trip=TRIP, numbers=None):
    figures = [figure("coopfs-peer", "seq128k", peer), figure("coopfs-peer", "rand4k", 4.0)]
    if nine_p:
        figures.append(figure("9p-tcp", "rand4k", nine_p))
    if p50:
        figures.append(figure("coopfs-peer", "rand128k", 40.0, p5=p5, p50=p50, p99=2 * p50))
    return {"raw_mb_s": [raw / 2, raw] if raw else [], "round_trip_us": {"256": trip}, "figures": figures,
            "stats": {"coopfs-peer": numbers or stats()},
            "untar": {}, "fetching": {"mb_s": peer, "fetches": 1, "pages": 32, "us": 1}, "profile": [],
            "failed": [], "skipped": [], "load": (0.5, 0.5, 0.5), "cpus": 2}


def row(record, name):
    return next(r for r in record["ratios"] if r["name"] == name)


def printed(record, name):
    return next(line for line in report.tables(record).splitlines() if line.startswith(name))


@pytest.mark.parametrize("peers, median", [((30, 60, 40), 40), ((30, 60, 40, 50), 45), ((50, 30), 40), ((30,), 30)])
def test_figures_are_true_medians(peers, median):
    record = report.merged([run(peer=p, raw=2 * p, p50=100 * p, trip=10 * p) for p in peers])
    assert report.speed(record, "coopfs-peer") == median
    assert report.raw(record) == 2 * median
    assert record["round_trip_us"] == {"256": 10 * median}
    latency = report.figure(record, "coopfs-peer", "rand128k", "cold")["latency_us"]
    assert (latency["p50"], latency["p99"]) == (100 * median, 200 * median)
    assert record["runs"] == len(peers)
    assert report.figure(record, "coopfs-peer", "seq128k", "cold")["values"] == list(peers)
    assert record["raw_values"] == [2 * p for p in peers]
    assert record["round_trip_values"] == {"256": [10 * p for p in peers]}


@pytest.mark.parametrize("values, median, reached", [
    ((0.5, 0.9, 0.7), 0.7, False), ((0.5, 0.9, 0.85), 0.85, True),
    ((0.9, 0.6), 0.75, False), ((0.9, 0.72), 0.81, True), ((0.1, 0.9, 0.9, 0.5), 0.7, False)])
def test_a_goal_is_judged_by_the_median_of_the_runs(values, median, reached):
    # The speed of the machine differs from run to run; the report keeps the ratio.
    record = report.merged([run(peer=v * (100 + i), raw=100 + i) for i, v in enumerate(values)])
    goodput = row(record, GOODPUT)
    assert goodput["value"] == pytest.approx(median)
    assert goodput["values"] == pytest.approx(list(values))
    assert goodput["reached"] is reached
    assert goodput["used"] == len(values) and not any(goodput["marked"])
    line = printed(record, GOODPUT)
    assert " ".join(f"{v:.3f}" for v in values) in line
    assert line.split()[-len(values) - 6:-len(values) - 3] == [">=", "0.8", "yes" if reached else "NO"]
    assert line.endswith(f"{len(values)} of {len(values)}")
    assert "!" not in report.tables(record)


@pytest.mark.parametrize("shares, reached", [
    ((0, 0, 40), True), ((0, 40, 40), False), ((40, 0), True), ((44, 0), False)])
def test_an_upper_bound_is_judged_by_the_median_too(shares, reached):
    record = report.merged([run(numbers=stats(storage_received=s)) for s in shares])
    assert row(record, SHARE)["values"] == [s / 2000 for s in shares]
    assert row(record, SHARE)["reached"] is reached


def test_a_run_in_which_the_limit_was_passed_is_marked_and_not_counted():
    record = report.merged([run(peer=84, raw=100, p50=3000), run(peer=112, raw=100, p50=9000),
                            run(peer=60, raw=100, p50=4000)])
    goodput = row(record, GOODPUT)
    assert goodput["values"] == pytest.approx([0.84, 1.12, 0.6]) and goodput["marked"] == [False, True, False]
    assert goodput["value"] == pytest.approx(0.72) and goodput["used"] == 2
    assert goodput["reached"] is False
    assert "0.840 1.120! 0.600" in printed(record, GOODPUT)
    assert printed(record, GOODPUT).endswith("2 of 3")
    assert "\n! in this run coopfs carried more than the raw link" in report.tables(record)
    # A row that does not depend on the limit counts in every run.
    assert row(record, READAHEAD)["marked"] == row(record, READAHEAD_P5)["marked"] == [False, True, False]
    assert row(record, RANDOM_9P)["marked"] == [False, False, False] and row(record, RANDOM_9P)["used"] == 3
    # The figures are those of all runs.
    assert report.speed(record, "coopfs-peer") == 84


@pytest.mark.parametrize("runs", [1, 2])
def test_where_the_limit_was_always_passed_a_goal_is_open(runs):
    record = report.merged([run(peer=112, raw=100)] * runs)
    goodput = row(record, GOODPUT)
    assert goodput["value"] is None and goodput["reached"] is None and goodput["used"] == 0
    assert goodput["values"] == pytest.approx([1.12] * runs)
    line = printed(record, GOODPUT)
    assert " ".join(["1.120!"] * runs) in line and "not measured" in line and line.endswith(f"0 of {runs}")
    assert "not measured" in printed(record, READAHEAD) and "not measured" in printed(record, READAHEAD_P5)


def test_a_figure_that_a_run_has_not_is_left_out_of_the_median():
    record = report.merged([run(nine_p=2.0), run(nine_p=None), run(nine_p=5.0), run(nine_p=4.0)])
    assert report.speed(record, "9p-tcp", "rand4k") == 4.0
    assert report.figure(record, "9p-tcp", "rand4k", "cold")["values"] == [2.0, None, 5.0, 4.0]
    ratio = row(record, RANDOM_9P)
    assert ratio["values"] == [2.0, None, 0.8, 1.0] and ratio["value"] == 1.0 and ratio["used"] == 3
    assert "2.000 - 0.800 1.000" in printed(record, RANDOM_9P) and printed(record, RANDOM_9P).endswith("3 of 4")


def test_what_no_run_measured_says_so():
    bare = {**run(raw=None, nine_p=None, p50=None), "stats": {}}
    record = report.merged([bare, bare])
    for name in (GOODPUT, READAHEAD, READAHEAD_P5, RANDOM_9P, SHARE, COPIED):
        assert row(record, name)["values"] == [None, None]
        assert "not measured" in printed(record, name) and printed(record, name).endswith("0 of 2")
    assert "raw link: - MB/s" in report.tables(record)


def test_a_run_without_a_raw_link_does_not_make_the_median_less():
    record = report.merged([run(raw=100), run(raw=0.0), run(raw=None), {**run(), "raw_mb_s": [0.0]}])
    assert report.raw(record) == 100 and record["raw_values"] == [100, None, None, None]


def test_the_share_from_storage_is_what_crossed_the_network():
    # The counters credit its reads with 200 of 2000 bytes from storage; 10 came over the network.
    record = report.merged([run(numbers=stats(storage_received=10))])
    assert row(record, SHARE)["value"] == 0.005 and row(record, SHARE)["reached"] is True
    # The reverse: more came than the counters credit.
    assert row(report.merged([run(numbers=stats(storage_received=600))]), SHARE)["reached"] is False
    unknown = {k: v for k, v in stats().items() if k != "storage rx_data_bytes"}
    assert row(report.merged([run(numbers=unknown)]), SHARE)["reached"] is None


def test_the_fifth_percentile_has_a_row_that_is_no_goal():
    record = report.merged([run(p50=3500, p5=2750)])
    assert row(record, READAHEAD)["value"] == pytest.approx(3500 / IDEAL) and row(record, READAHEAD)["reached"] is False
    informs = row(record, READAHEAD_P5)
    assert informs["value"] == pytest.approx(2750 / IDEAL)
    assert informs["goal"] is None and informs["reached"] is None
    assert printed(record, READAHEAD_P5).split()[-7:] == ["1.100", "-", "-", "1.100", "1", "of", "1"]


def test_a_pages_time_follows_from_the_figures_above_it_and_its_parts_from_one_run():
    record = report.merged([run(peer=p) for p in (40, 10, 0, 0, 20)])
    assert record["middle_run"] == 5 and record["fetching"]["mb_s"] == 20
    costs = {r["what"]: r["us"] for r in record["per_page"]}
    assert costs["a page from the peer, as fio sees it"] == pytest.approx(4096 / 10)
    assert costs["  windows in flight, mean (a number)"] == pytest.approx(1 / (32 * 4096 / 20))
    assert "of run 5 alone" in report.tables(record)


def test_what_machines_say_is_understood():
    program = of_bench("run")
    said = program.fio(TERSE)
    assert said["latency_us"] == {"mean": 221.243813, "p5": 127, "p50": 138, "p99": 2146}
    record = report.merged([run(numbers=program.stats(STATS.replace("\n", ";")))])
    assert row(record, SHARE)["value"] == 0.005 and row(record, COPIED)["reached"] is True


def test_files_a_second_are_the_median_of_all_turns():
    turns = [{"coopfs": [100.0, 300.0], "nfs-tcp": [50.0, 100.0]}, {"coopfs": [200.0], "nfs-tcp": [40.0]}]
    record = report.merged([{**run(), "untar": t} for t in turns])
    assert record["untar"] == {"coopfs": [100.0, 300.0, 200.0], "nfs-tcp": [50.0, 100.0, 40.0]}
    # Of the runs: 200 / 75, 200 / 40.
    assert row(record, "tar -x of small files / NFSv4.1 over TCP")["values"] == pytest.approx([200 / 75, 5.0])
    assert printed(record, "coopfs ").split() == ["coopfs", "200", "100", "300", "200"]
    assert row(record, "the same, FUSE")["reached"] is None
