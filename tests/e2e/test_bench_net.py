# SPDX-License-Identifier: MIT
"""bench/net: the commands it gives coopnet, and its table."""
import importlib.util
import json
import os
import pathlib
import subprocess

import pytest

from cluster import program

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench/net"


def module(name):
    """Loads a module of bench/net; bench/fio has modules of the same names."""
    spec = importlib.util.spec_from_file_location("bench_net_" + name, BENCH / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


systems, results = module("systems"), module("results")
COOPNETS = [one for one in systems.ALL if isinstance(one, systems.coopnet)]


@pytest.mark.skipif(not os.access(program("coopnet"), os.X_OK), reason="needs coopnet: build it first")
@pytest.mark.parametrize("one", [c for c in COOPNETS if "bulk" not in c.arguments], ids=lambda one: one.name)
def test_as_many_peers_as_it_asks_for_can_connect(one, tmp_path):
    out = tmp_path / "out"
    done = subprocess.run(
        [str(BENCH / "run"), "--systems", one.name, "--reps", "1", "--seconds", "0.01", "--peers", "10", "--out", out],
        env=dict(os.environ, COOP_BIN=os.path.dirname(program("coopnet")), PYTHONDONTWRITEBYTECODE="1"),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((out / "net.json").read_text())
    assert record["failed"] == []
    peers, = [f for f in record["figures"] if f["case"] == "peers"]
    if one.name == "coopnet-mem":  # both sides are one process
        assert "connected" not in peers
    else:
        assert peers["connected"] == systems.CONNECTED
        assert f"bytes for each of {peers['connected']} that are connected\n" in done.stdout


def test_the_table_of_what_was_not_connected():
    figure = {"system": "coopnet-mem", "case": "peers", "mode": "", "bytes": 0, "repetition": 0, "peers": 10,
              "peer_bytes": 150.0, "find_ns": 60.0}
    record = {"repetitions": 1, "figures": [figure]}
    record.update(summary=results.summary(record), targets=[])
    assert "coopnet-mem: 150 bytes an end point, found in 60 ns\n" in results.tables(record)


LATENCY = """
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       2000000          0.55           20065.11      0.88     \t       2.27        \t97.55  \t\t6.99    \t\t19.37 
---------
"""
BANDWIDTH = """
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             7103.11            6800.50\t\t   0.108808
"""


def test_the_rows_of_perftest():
    assert systems.parse_verbs(LATENCY) == {"p50_us": 0.88, "half_us": 2.27}
    assert systems.parse_verbs(BANDWIDTH) == {"mb_s": pytest.approx(6800.5 * 1.048576)}
    with pytest.raises(RuntimeError, match="no row"):
        systems.parse_verbs("Completion with error at client\n")


def test_the_lines_of_qperf():
    assert systems.parse_qperf("tcp_lat:\n    latency  =  12500 ns\n") == {"half_us": 12.5}
    assert systems.parse_qperf("tcp_bw:\n    bw  =  2500000000 bytes/sec\n") == {"mb_s": 2500}


def test_each_side_of_a_ratio_is_measured():
    names = {one.name for one in systems.ALL}
    for what, above, below, *_ in results.TARGETS + results.COMPARED:
        assert {above[0], below[0]} <= names, what


def test_rivals_figures_are_read_right():
    table = ("bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
             "1m      100     =100     200m        0.08s   2629.99     398.70       0.00\n")
    assert systems.parse_pingpong(table) == {"half_us": 398.70, "mb_s": 2629.99}
    row = systems.parse_perftest("| Test |\n      200      5.712   239.691   239.691     4172.05    4000.00"
                                 "        4172        4000\n")
    assert row["mb_s"] == pytest.approx(4000 * (1 << 20) / 1e6)
    assert row["half_us"] == 239.691 and row["messages_s"] == 4000


def test_ratios_pair_figures_of_one_repetition():
    def ping(system, repetition, half_us):
        return {"system": system, "case": "ping", "mode": "poll", "bytes": 8, "repetition": repetition,
                "half_us": half_us}

    # The machine was half as fast in the second repetition: the ratio stays.
    record = {"figures": [ping("coopnet-fabric-tcp", 0, 9), ping("fi_pingpong-tcp", 0, 10),
                          ping("coopnet-fabric-tcp", 1, 18), ping("fi_pingpong-tcp", 1, 20)]}
    first, second = results.targets(record)[:2]
    assert first["value"]["median"] == pytest.approx(0.9) and first["reached"] is True
    assert second["value"] is None and second["reached"] is None


def test_what_is_compared_without_a_goal_is_neither_reached_nor_missed():
    def ping(system, half_us):
        return {"system": system, "case": "ping", "mode": "poll", "bytes": 8, "repetition": 0, "half_us": half_us}

    record = {"figures": [ping("coopnet-ntrdma", 3), ping("ucx-posix", 2)], "repetitions": 1, "summary": []}
    record["targets"] = results.targets(record)
    lines = results.tables(record).splitlines()
    assert "compared      8 B half round trip, ntrdma / ucx posix: 1.50 (1.50 to 1.50)" in lines
    assert "not measured  8 B messages/s, ntrdma / ucx posix" in lines
    assert "not measured  8 B half round trip, ntrdma / fi_pingpong, shm <= 1.0" in lines
