#!/usr/bin/env python3
"""test_map.py LOAM SOURCE_DIR: GET /v1/loam/map, where the chunks of the caller's sequence are.  That its cells are the
engine's state is tests/engine/test_map.c's; here: whose sequence it is and what its changes say."""
import threading

from loam_server import Case, main

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
TEXT = "The gate of the garden is painted green. Nobody knows who painted it. " * 60


def updated(cells, found):
    """The cells of a map, or what it says of those of the one before."""
    if "cells" in found:
        return list(found["cells"])
    for at, run in zip(found["changes"][::2], found["changes"][1::2]):
        cells[at:at + len(run)] = run
    return cells


class Map(Case):
    # Without drafts a step has one row, which is the last token's.
    options = ("-c", "4096", "-np", "2", "--kv-host", "64M", "--api-key", "one", "--api-key", "two", "--draft-max", "0")
    one, two = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}

    def map(self, headers, since=None):
        reply = self.server.get("/v1/loam/map" + ("?since=%d" % since if since else ""), headers=headers)
        self.assertEqual(reply.status, 200, reply.body[:300])
        if "changes" in reply.json:
            self.assertLessEqual(len(reply.body), 16 << 10)
        return reply.json

    def test_1_is_of_the_callers_own(self):
        self.refused(self.server.get("/v1/loam/map"), 401)
        self.assertEqual(self.map(self.one)["state"], "none")
        self.server.post("/v1/completions", {"prompt": TEXT, "max_tokens": 4}, headers=self.one)
        mine = self.map(self.one)
        self.assertEqual((mine["state"], mine["sequences"]), ("idle", 1))
        self.assertEqual(self.map(self.two), {"object": "loam.map", "sequences": 0, "state": "none"})
        self.server.post("/v1/completions", {"prompt": "A short one.", "max_tokens": 4}, headers=self.two)
        self.assertLess(self.map(self.two)["tokens"], 64)
        self.assertEqual(self.map(self.one)["tokens"], mine["tokens"])

    def test_2_counts_what_its_cells_show(self):
        found = self.map(self.one)
        self.assertFalse(found["selects"])
        cells = [ALPHABET.index(c) for c in found["cells"]]
        self.assertEqual(len(cells), found["layers"] * found["kv_heads"] * found["columns"])
        self.assertEqual(found["column_tokens"], 64)
        self.assertEqual(len(cells), found["chunks"]["all"])
        self.assertEqual(sum(c & 3 == 3 for c in cells), found["chunks"]["ram"])
        self.assertEqual(sum(c & 12 != 0 for c in cells), found["chunks"]["attended"])
        self.assertEqual(sum(c & 16 != 0 for c in cells), found["chunks"]["read"])

    def test_3_tells_what_changed(self):
        """Of answers one behind the other, until maps were read in between."""
        statuses, enough = set(), threading.Event()

        def ask():
            while not enough.is_set():
                statuses.add(self.server.post("/v1/completions", {"prompt": TEXT[:2000], "max_tokens": 400, "ignore_eos": True},
                                              headers=self.one).status)
        asking = threading.Thread(target=ask)
        asking.start()
        cells, number, shape, changes = [], 0, None, 0
        try:
            while asking.is_alive():
                found = self.map(self.one, number)
                if found["state"] == "none":
                    continue
                if "changes" in found:
                    changes += 1
                    self.assertEqual((found["columns"], found["late"]), (shape, 0))  # as a small model has few cells
                cells, number, shape = updated(cells, found), found["number"], found["columns"]
                if changes > 0 and found["state"] == "answering" and found["token"]["attended_rows"] > 0:
                    enough.set()
        finally:
            enough.set()
            asking.join()
        self.assertEqual(statuses, {200})
        cells, found = updated(cells, self.map(self.one, number)), self.map(self.one)
        self.assertEqual(found["state"], "idle")
        self.assertEqual("".join(cells), found["cells"])
        self.assertEqual(found["position"] + 1, found["tokens"])


class Selecting(Case):
    """What a preset leaves out is counted alike by the map, for one token, and by the metrics, for all."""
    options = ("-c", "2048", "-np", "1", "--set", "select=window", "--set", "dense=0", "--keep", "64", "--kv-host", "64M")

    def test_kept_ratio(self):
        def asked(count):
            self.server.post("/v1/completions", {"prompt": TEXT[:2000], "max_tokens": count, "ignore_eos": True})
            return self.server.get("/v1/loam/map").json
        found, steps = asked(1), 0  # the first token is the prompt's
        while steps == 0 or found["token"]["visible_rows"] == 0 and steps < 20:  # noted within 3 s of the map before
            found, steps = asked(2), steps + 1
        metrics, token = self.server.metrics(), found["token"]
        self.assertTrue(found["selects"])
        self.assertLess(token["attended_rows"], token["visible_rows"])
        self.assertEqual((metrics["loam_attended_rows_total"], metrics["loam_visible_rows_total"]),
                         (steps * token["attended_rows"], steps * token["visible_rows"]))
        self.assertAlmostEqual(metrics["loam_kept_ratio"], token["attended_rows"] / token["visible_rows"])


if __name__ == "__main__":
    main()
